"""What one of a plain pair is told about itself and its partner."""

from __future__ import annotations

from typing import Literal, NamedTuple

from holdfast.consensus.partner import PairSettings


class PlainSettings(NamedTuple):
    """`partner` is the text address of the other one, as people write it, and `address` as sockets take it.

    `is_bare`: a foreign partner is spoken to without ids and numbers, in the words of the `ack` dialect.
    """

    partner: str
    address: tuple[str, int]
    first_role: Literal["primary", "backup"]
    is_bare: bool
    pair: PairSettings

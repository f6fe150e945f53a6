"""The id of a pushed message: a pure function of its partition's name and its transaction id.

Ids are recognised within a partition of a topic, and several names may share one, so the name has to be in the id. It
has the form of a UUID:

- Where the transaction id is a UUID (36 characters, lower case), its bytes are mixed (XOR) with a mask made of the
  partition's name. The first six bytes stay, and so do version and variant: what rises with time, as version 7 does,
  gives ids that rise with time, and an index of them grows at its end. Different transaction ids of one name never
  meet; for two names to meet, 74 bits have to.
- Any other text is hashed (SHA-256) together with the name, into a UUID of version 8.

`push_ids` gives what `push_id` gives for each, without a Python step for each that is worth the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_UUID_CHARACTERS: Final = 36
_DASHES_AT: Final = (8, 13, 18, 23)
# What a mask can change: which digit of a UUID, and where it stands in the text.
_MIXED_DIGITS: Final = tuple(
    (digit, place) for digit, place in enumerate(sorted({*range(36)} - {8, 13, 18, 23})) if digit >= 13
)
# From so many on, it is faster to write digit by digit for all of them.
_MANY: Final = 16
# Names to remember masks of; a flood of names must not fill memory.
_MASKS_MAX: Final = 8192


class _Masks(dict[str, bytes]):
    """By partition name: what its UUIDs are mixed with."""

    def __missing__(self, name: str) -> bytes:
        if len(self) >= _MASKS_MAX:
            self.clear()
        mask = bytearray(sha256(b"holdfast partition\0" + name.encode()).digest()[:16])
        mask[:6] = bytes(6)
        mask[6] &= 0x0F
        mask[8] &= 0x3F
        self[name] = made = bytes(mask)
        return made


_masks = _Masks()


def is_uuid(text: str) -> bool:
    """Whether this is a UUID as it is written here: lower case, with dashes."""
    return _UUID.match(text) is not None


def are_uuids(texts: Sequence[str]) -> bool:
    """Whether all of them are."""
    return raw_uuids(texts) is not None


def push_id(name: str, transaction_id: str) -> str:
    """The id of the message with this transaction id in the partition of this name."""
    if is_uuid(transaction_id):
        mixed = int(transaction_id.replace("-", ""), 16) ^ int.from_bytes(_masks[name], "big")
        return _dashed(f"{mixed:032x}", 0)
    # No name has a control character, so the two cannot run into each other.
    digest = bytearray(sha256(b"holdfast push\0" + name.encode() + b"\0" + transaction_id.encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return _dashed(digest.hex(), 0)


def push_ids(names: Sequence[str], transaction_ids: Sequence[str]) -> list[str]:
    """The ids of many messages, each as `push_id` has it."""
    raw = raw_uuids(transaction_ids)
    if raw is None:
        return list(map(push_id, names, transaction_ids))
    masks = b"".join(map(_masks.__getitem__, names))
    mixed = (int.from_bytes(raw, "big") ^ int.from_bytes(masks, "big")).to_bytes(len(raw), "big").hex()
    if len(names) < _MANY:
        return [_dashed(mixed, start) for start in range(0, len(mixed), 32)]
    digits = mixed.encode()
    lines = bytearray("\n".join(transaction_ids).encode())
    for digit, place in _MIXED_DIGITS:
        lines[place :: _UUID_CHARACTERS + 1] = digits[digit::32]
    return lines.decode().split("\n")


def raw_uuids(texts: Sequence[str]) -> bytes | None:
    """The bytes of texts that are UUIDs, all of them."""
    count = len(texts)
    if set(map(len, texts)) != {_UUID_CHARACTERS}:
        return None
    joined = "".join(texts)
    if any(joined[place::_UUID_CHARACTERS] != "-" * count for place in _DASHES_AT):
        return None
    digits = joined.replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    # What else is understood as hexadecimal, such as blanks and upper case, is not what was written.
    return raw if len(raw) == 16 * count and raw.hex() == digits else None


def _dashed(digits: str, at: int) -> str:
    return f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-{digits[at + 12 : at + 16]}-{digits[at + 16 : at + 20]}-{digits[at + 20 : at + 32]}"  # noqa: E501

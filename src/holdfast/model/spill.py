"""What is kept on a broker's disk while its store is away, in the words of Queen MQ, whose interface says it so."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class FileBuffer(Struct, frozen=True, kw_only=True):
    """What is kept on the broker's disk while its store is away (the spill)."""

    pending: Annotated[int, Meta(description="messages that wait to be stored")]
    flushed: Annotated[int, Meta(description="messages stored after they had waited, since the start")]
    failed: Annotated[int, Meta(description="lines in failed/")]
    db_healthy: Annotated[bool, Meta(description="whether the store takes messages now")]

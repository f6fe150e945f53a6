"""What a user may set of transactions, and what is counted of them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from holdfast.model.limits import COMMIT_WAIT_MS, STAGED_BYTES_MAX, TRANSACTION_EXPIRY_MS


class Settings(NamedTuple):
    expiry_ms: int = TRANSACTION_EXPIRY_MS
    staged_bytes_max: int = STAGED_BYTES_MAX
    commit_wait_ms: int = COMMIT_WAIT_MS


class TransactionStats(msgspec.Struct):
    """Counters since the start. What is staged is counted where it comes in, all else by its coordinator."""

    staged_messages: int = 0
    staged_bytes: int = 0
    committed: int = 0
    committed_bytes: int = 0
    repeated: int = 0
    refused: int = 0
    aborted: int = 0
    expired_pieces: int = 0
    lost_pieces: int = 0
    restarts: int = 0


class LogEvent(Protocol):
    def __call__(self, event: str, /, **fields: object) -> None: ...


# Events of every transaction that goes as it should: a streaming query may have many a second.
EVERYDAY = frozenset({"transaction_committed"})
# Events that somebody should look at.
WARNINGS = frozenset(
    {
        "transaction_waits",
        "transaction_data_lost",
        "transaction_floor_expired",
        "transaction_target_gone",
        "transaction_notes_taken_back",
        "coordinator_failed",
    }
)

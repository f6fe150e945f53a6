"""What only a client can run into, next to the errors every part of Holdfast shares."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.errors import (
    CallerError,
    ConfigError,
    ConnectionLost,
    HoldfastError,
    RemoteError,
    RemoteOutcomeUnknown,
)
from holdfast.model.messages import Published


class ClientClosed(CallerError):
    """The client or subscription was closed before or during the call."""

    code = "client_closed"


class TransactionAborted(CallerError):
    """A transaction was aborted, and is used again."""

    code = "transaction_aborted"


class WrongPort(ConfigError):
    """Something answers at the address, but it is not the broker's HTTP port. Trying again is no use."""

    code = "wrong_port"


def wrong_text_port(address: str, line: bytes, why: str) -> WrongPort:
    """For what answered in place of a broker's text port; one line of it says what it is."""
    if line.startswith(b"HTTP/"):
        return WrongPort(
            f"{address} is an HTTP port, not the text port of a broker: use `--server {address}` or `holdfast.connect` "
            "for it, or give the text port, which is 8080 unless set"
        )
    return WrongPort(f"{address} is not the text port of a broker: {why}")


class AnswerLost(ConnectionLost):
    """The connection broke behind a publish that may not be sent twice: it was stored, or it was not.

    Publishes without ids end here, and those to a topic whose partitions the broker does not know. The
    client does not guess: sending again could store the messages twice, giving up silently could lose them.
    """

    code = "outcome_unknown"


MAYBE_STORED = (
    "one of these tries may have arrived, so it may be stored or not: sent again with the same id it is stored once"
)


class MaybeStored(ConnectionLost):
    """The time was over behind a publish of which a try may have arrived: it is stored, or it is not.

    Publishes with ids end here: whoever sends one again with the same id has it stored once.
    """


class PublishManyLost(ConnectionLost):
    """`publish_many` lost the broker half way; `results` says which messages are stored for certain.

    `results[i]` is `None` where message `i` was not stored or, if `outcome_unknown`, may not have been.
    """

    def __init__(self, cause: ConnectionLost, results: Sequence[Published | None]) -> None:
        super().__init__(_half_way(cause, results))
        self.__cause__ = cause
        self.code = cause.code  # type: ignore[misc]
        self.outcome_unknown = may_be_stored(cause)
        self.results = results


class PublishManyRefused(RemoteOutcomeUnknown):
    """The broker refused a batch of `publish_many`; others may be stored, as `results` says.

    `results[i]` is `None` where message `i` was not stored or, if `outcome_unknown`, may not have been.
    """

    def __init__(self, cause: RemoteError, results: Sequence[Published | None]) -> None:
        super().__init__(cause.code, _half_way(cause, results), cause.http_status)
        self.__cause__ = cause
        self.outcome_unknown = may_be_stored(cause)
        self.results = results


def may_be_stored(error: BaseException) -> bool:
    """Whether a publish that ended with this may be stored all the same."""
    return isinstance(error, AnswerLost | MaybeStored | RemoteOutcomeUnknown)


def another(error: BaseException) -> BaseException:
    """The same error for one more caller: one that is raised in many tasks collects all their tracebacks."""
    same = type(error).__new__(type(error), *error.args)
    same.args = error.args
    same.__dict__.update(error.__dict__)
    same.__cause__ = error.__cause__
    return same


def _half_way(cause: HoldfastError, results: Sequence[Published | None]) -> str:
    stored = sum(result is not None for result in results)
    return f"{stored} of {len(results)} messages are stored for certain, then: {cause.message}"


class AttemptFailed(Exception):
    """One try at one address failed; whoever keeps trying decides what that means.

    `sent` tells whether bytes of the request left: if not, the broker has certainly done nothing.
    """

    def __init__(self, address: str, reason: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent

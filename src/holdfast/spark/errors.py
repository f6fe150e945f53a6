"""What can go wrong between Spark and a broker, with a stable code in every text: Spark passes on texts only."""

from __future__ import annotations

from holdfast.model.errors import CallerError, HoldfastError, NotStored, OutcomeUnknown, Refused


class BadOption(CallerError):
    """An option of the source is unknown, missing or makes no sense."""

    code = "bad_option"


class BadSchema(CallerError):
    """A schema that the source cannot fill."""

    code = "bad_schema"


class JavaNotFound(Refused):
    """There is no Java that Spark can run on."""

    code = "java_not_found"


class DataLost(Refused):
    """Messages that the query was to read are gone, or may be: expired, damaged, or with their topic."""

    code = "data_lost"


class BrokerAway(OutcomeUnknown):
    """No broker gave an answer that helps, for as long as `brokerTimeout` says."""

    code = "connection_lost"


class WriterAhead(CallerError):
    """A writer has committed later numbers than the one that a query brings."""

    code = "writer_ahead"


class BatchDiffers(CallerError):
    """A number of a writer comes again with other rows than it was committed with."""

    code = "batch_differs"


class TooManyDead(CallerError):
    """More messages of a batch are dead letters than a pipeline allows."""

    code = "too_many_dead"


class ArchiveBusy(NotStored):
    """Another process writes the archive."""

    code = "archive_busy"


class ArchiveDamaged(Refused):
    """What says which files of an archive count cannot be read."""

    code = "archive_damaged"


class ArchiveMismatch(CallerError):
    """An archive holds another topic of that name, which was deleted since."""

    code = "archive_mismatch"


def with_code(kind: type[HoldfastError], text: str) -> HoldfastError:
    """An error whose text begins with its code."""
    return kind(f"[{kind.code}] {text}")

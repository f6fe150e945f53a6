"""What can go wrong between Spark and a broker, with a stable code in every text: Spark passes on texts only."""

from __future__ import annotations

from holdfast.model.errors import CallerError, HoldfastError, WorldError


class BadOption(CallerError):
    """An option of the source is unknown, missing or makes no sense."""

    code = "bad_option"


class BadSchema(CallerError):
    """A schema that the source cannot fill."""

    code = "bad_schema"


class JavaNotFound(HoldfastError):
    """There is no Java that Spark can run on."""

    code = "java_not_found"


class DataLost(HoldfastError):
    """Messages that the query was to read are gone, or may be: expired, damaged, or with their topic."""

    code = "data_lost"


class BrokerAway(WorldError):
    """No broker gave an answer that helps, for as long as `brokerTimeout` says."""

    code = "connection_lost"


class WriterAhead(CallerError):
    """A writer has committed later numbers than the one that a query brings."""

    code = "writer_ahead"


class ArchiveBusy(WorldError):
    """Another process writes the archive."""

    code = "archive_busy"


class ArchiveDamaged(HoldfastError):
    """What says which files of an archive count cannot be read."""

    code = "archive_damaged"


class ArchiveMismatch(CallerError):
    """An archive holds another topic of that name, which was deleted since."""

    code = "archive_mismatch"


def with_code(kind: type[HoldfastError], text: str) -> HoldfastError:
    """An error whose text begins with its code."""
    return kind(f"[{kind.code}] {text}")

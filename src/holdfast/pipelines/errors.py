"""What can go wrong with a pipeline's input, with a stable code for each case."""

from __future__ import annotations

import re

from holdfast.model.errors import CallerError, HoldfastError

# How the connector begins its texts: Spark passes on texts only.
_CODED = re.compile(r"\[([a-z]+(?:_[a-z]+)+)\] ([^\n]+)")
# How Python ends what it tells of an error, which Spark puts behind a line of its own.
_RAISED = re.compile(r"^Traceback .*?^(\w+(?:\.\w+)*: [^\n]+)", re.MULTILINE | re.DOTALL)


class RecordsNotFound(CallerError):
    """A file, directory or pattern that leads to no file."""

    code = "records_not_found"


class BadRecords(CallerError):
    """Files that hold something else than the records that were asked for."""

    code = "bad_records"


class BadPipelineSetting(CallerError):
    """A setting of a pipeline is unknown, missing or makes no sense."""

    code = "bad_option"


class SparkNotInstalled(HoldfastError):
    """Holdfast is here without its extra `spark`."""

    code = "spark_not_installed"


class PipelineFailed(HoldfastError):
    """Spark gave up; where the connector knows why, the code is the connector's."""

    code = "pipeline_failed"


def from_spark(text: str) -> PipelineFailed:
    """What Spark says of a failure, with the connector's code where its text has one."""
    if (coded := _CODED.search(text)) is None:
        raised = _RAISED.search(text)
        reason = raised[1] if raised is not None else next(iter(text.strip().splitlines()), "no reason")
        return PipelineFailed(f"Spark could not do it: {reason}")
    failed = PipelineFailed(coded[2].strip())
    failed.code = coded[1]  # type: ignore[misc]
    return failed


def uncoded(error: HoldfastError) -> HoldfastError:
    """An error of the connector as one whose text does not begin with its code, which the command adds."""
    return from_spark(error.message) if error.message.startswith(f"[{error.code}] ") else error

"""What can go wrong with a pipeline's input, with a stable code for each case."""

from __future__ import annotations

import re

from holdfast.model.errors import CallerError, HoldfastError

# How the connector begins its texts: Spark passes on texts only.
_CODED = re.compile(r"\[([a-z]+(?:_[a-z]+)+)\] ([^\n]+)")

# The end of what Python says of an exception, behind a first line that only says that there was one.
_RAISED = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): [^\n]+", re.MULTILINE)


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
        raised = _RAISED.findall(text)
        first = text.strip().splitlines()[0].rstrip() if text.strip() else "no reason"
        return PipelineFailed(f"Spark could not do it: {raised[-1] if first.endswith(':') and raised else first}")
    failed = PipelineFailed(coded[2].strip())
    failed.code = coded[1]  # type: ignore[misc]
    return failed


def uncoded(error: HoldfastError) -> HoldfastError:
    """An error of the connector as one whose text does not begin with its code, which the command adds."""
    return from_spark(error.message) if error.message.startswith(f"[{error.code}] ") else error

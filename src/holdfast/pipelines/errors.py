"""What can go wrong with a pipeline's input, with a stable code for each case."""

from __future__ import annotations

import re

from holdfast.model.errors import CallerError, HoldfastError, OutcomeUnknown, Refused

# How the connector begins its texts: Spark passes on texts only.
_CODED = re.compile(r"\[([a-z]+(?:_[a-z]+)+)\] ([^\n]+)")
# How Python ends what it tells of an error, which Spark puts behind a line of its own.
_RAISED = re.compile(r"^Traceback .*?^(\w+(?:\.\w+)*: [^\n]+)", re.MULTILINE | re.DOTALL)

# How Java ends what it tells of an error, behind all that failed because of it; what stands further in is an aside.
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )*([^\n]+)", re.MULTILINE)

# What the connector advises, in options of its own, and what that is called in a pipeline's command.
_ADVICE = re.compile(r"correct the option servers; brokerTimeout says how long one may be away")
_PATIENCE = re.compile(r" \(brokerTimeout\)")
_LOST = re.compile(r"with the option failOnDataLoss=false a query goes on without it")
_INSTEAD_OF_LOST = {
    "archive": "with --allow-gaps it goes on behind it",
    "transform": "with a new --checkpoint it begins anew, with what the topic has now",
}


class RecordsNotFound(CallerError):
    """A file, directory or pattern that leads to no file."""

    code = "records_not_found"


class BadRecords(CallerError):
    """Files that hold something else than the records that were asked for."""

    code = "bad_records"


class BadPipelineSetting(CallerError):
    """A setting of a pipeline is unknown, missing or makes no sense."""

    code = "bad_option"


class BadFunction(CallerError):
    """A function that cannot be found or called, or that returns something else than rows."""

    code = "bad_function"


class FunctionEnded(CallerError):
    """A call of a function ended its process, or could not be interrupted and was ended with it."""

    code = "function_ended"


class BadSql(CallerError):
    """A statement that Spark does not understand, or whose rows are no messages."""

    code = "bad_sql"


class TooManyRaise(CallerError):
    """A statement that raises for so many messages of a batch that they are not set aside one by one."""

    code = "too_many_raise"


class StatementRaised(CallerError):
    """A statement that aggregates, and raises: no single message is to blame."""

    code = "statement_raised"


class SparkNotInstalled(Refused):
    """Holdfast is here without its extra `spark`."""

    code = "spark_not_installed"


class PipelineFailed(OutcomeUnknown):
    """Spark gave up; where the connector knows why, the code is the connector's."""

    code = "pipeline_failed"


def spark_not_installed(missing: ModuleNotFoundError) -> SparkNotInstalled:
    return SparkNotInstalled(
        f"pipelines need the package {missing.name}, which is not installed: run pip install -e '.[spark]' in the "
        "directory of the sources, with the pip of this environment"
    )


def first_line(text: str) -> str:
    """What Spark says first; before it stands which call failed, and behind it are plans and traces."""
    lines = (line.strip(" :\t") for line in text.splitlines() if not line.startswith("An error occurred while calling"))
    return next((line for line in lines if line), "no reason")


def _with_cause(text: str) -> str:
    """What Spark says first, and why: of a disk that is full it says first that a task has failed."""
    first, causes = first_line(text), _CAUSE.findall(text)
    return first if not causes or causes[-1] in first else f"{first} ({causes[-1].strip()})"


def from_spark(text: str) -> PipelineFailed:
    """What Spark says of a failure, with the connector's code where its text has one."""
    if (coded := _CODED.search(text)) is None:
        raised = _RAISED.search(text)
        return PipelineFailed(f"Spark could not do it: {_with_cause(text) if raised is None else raised[1]}")
    failed = PipelineFailed(coded[2].strip())
    failed.code = coded[1]  # type: ignore[misc]
    return failed


def for_command(name: str, error: HoldfastError) -> HoldfastError:
    """The same error, with the options that this pipeline's command has in place of the connector's."""
    text = _PATIENCE.sub("", _ADVICE.sub("correct --server", error.message))
    text = _LOST.sub(_INSTEAD_OF_LOST.get(name, "run it again for what is there now"), text)
    if text != error.message:
        error.message = text
        error.args = (text,)
    return error


def uncoded(error: HoldfastError) -> HoldfastError:
    """An error of the connector as one whose text does not begin with its code, which the command adds."""
    return from_spark(error.message) if error.message.startswith(f"[{error.code}] ") else error

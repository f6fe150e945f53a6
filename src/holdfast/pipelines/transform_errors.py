"""What an error of a statement says, and whether a row can be to blame for it.

Which row that is nobody reads from a text: `transform_raising` finds out by running the statement. Texts only tell what
no row can be blamed for, so that nobody looks for one.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.pipelines.errors import first_line

# Data exceptions, and what `raise_error` says: those of a row for sure.
_OF_A_ROW: Final = re.compile(r"SQLSTATE: (22[0-9A-Z]{3}|P0001)\b")
_SAID: Final = r"\[([A-Z][A-Z0-9_.]+)\]\s*((?:(?!\[[A-Z_.]{4,}\]).)*?)\s*SQLSTATE: "
_CLASSES: Final = [re.compile(_SAID + state, re.DOTALL) for state in (r"(?:22|P0)", r"[0-9A-Z]{5}\b")]
# The last line of what Python tells, with the class and what it says.
_PYTHON: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n|\n)*([A-Za-z_][\w.]*)(?:: ([^\n]*))?$", re.MULTILINE
)
# Before a Java class: the task that failed last, the call, or what came of it.
_BEFORE: Final = r"^(?:[^\n]*\(TID \d+\) \([^()\n]*\): |: |Caused by: )(?:[\w$]+\.)*"
_JAVA: Final = re.compile(rf"{_BEFORE}([A-Za-z_][\w$]*)(?:[:;] ?([^\n]*))?$", re.MULTILINE)
_NO_ROWS_FAULT: Final = re.compile(
    rf"\A\[SPARK_JOB_CANCELLED\]|{_BEFORE}"
    r"(?:\w*MemoryError\b|InterruptedException\b|ExecutorLostFailure\b"
    r"|SparkException: (?:\[SPARK_JOB_CANCELLED\]|Python worker exited unexpectedly))",
    re.MULTILINE,
)
# Memory; and the connector's errors, which begin with their codes.
_NO_PYTHON_ROWS_FAULT: Final = re.compile(r"[\w.]*MemoryError:|holdfast\.[\w.]+: \[[a-z_]+\] ")


def of_a_row(error: BaseException | None) -> str | None:
    """What an error says, where its text alone tells that a row of a statement has raised it; else none."""
    return None if error is None or _OF_A_ROW.search(str(error)) is None else said(error)


def said(error: BaseException) -> str:
    """What an error says on one line, with its class in front: Spark's, else Python's or Java's."""
    text = str(error)
    for pattern in _CLASSES:
        if match := pattern.search(text):
            return f"{match[1]}: {' '.join(match[2].split())}"
    for found in (_PYTHON.findall(text), _JAVA.findall(text)):
        if found:
            name, words = found[-1]
            name = name.rpartition(".")[2]
            return f"{name}: {words.strip()}" if words.strip() else name
    return f"{type(error).__name__}: {first_line(text)}"


def is_no_rows_fault(error: BaseException) -> bool:
    """Whether it is the machine's, the broker's, or of somebody who has stopped it: no row is to be looked for."""
    text = str(error)
    if _OF_A_ROW.search(text):
        return False
    if found := _PYTHON.findall(text):
        name, words = found[-1]
        return bool(_NO_PYTHON_ROWS_FAULT.match(f"{name}: {words}"))
    return _NO_ROWS_FAULT.search(text) is not None

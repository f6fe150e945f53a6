"""Which row is to blame is found by running; a text may only say that none is."""

from __future__ import annotations

import pytest

from holdfast.pipelines.transform_errors import is_no_rows_fault, of_a_row, said

JOB = (
    "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 1 in stage 3.0 failed 4 times, most recent failure: Lost task 1.3 in stage 3.0 (TID 48) (host executor 1): "
)
TRACE = 'Traceback (most recent call last):\n  File "x", line 1, in f\n'
PYTHON = f"An exception was thrown from the Python worker:\n{TRACE}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[DUPLICATED_MAP_KEY] Duplicate map\nkey a. SQLSTATE: 23505", "DUPLICATED_MAP_KEY: Duplicate map key a."),
        (
            "[CAST_INVALID_INPUT] The value 'MemoryError'. SQLSTATE: 22018",
            "CAST_INVALID_INPUT: The value 'MemoryError'.",
        ),
        (f"{JOB}java.util.regex.PatternSyntaxException: Unclosed\n(", "PatternSyntaxException: Unclosed"),
        (f"{JOB}a.B: b\n\tat c\nCaused by: java.io.C; line 1: d\n\tat e", "C: line 1: d"),
        (f"{JOB}java.lang.NullPointerException\n\tat c", "NullPointerException"),
        (
            f"{PYTHON}ValueError: no number: 'java.lang.OutOfMemoryError'",
            "ValueError: no number: 'java.lang.OutOfMemoryError'",
        ),
        (f"{PYTHON}decimal.InvalidOperation: [<class 'x'>]", "InvalidOperation: [<class 'x'>]"),
        (f"{PYTHON}KeyError", "KeyError"),
        (f"{JOB}a.PythonException: {TRACE}KeyError: 'a'\n\n\tat c", "KeyError: 'a'"),
        ("[A_B] c SQLSTATE: XXKST\n[DIVIDE_BY_ZERO] d SQLSTATE: 22012", "DIVIDE_BY_ZERO: d"),
        ("Cannot create array", "Exception: Cannot create array"),
    ],
)
def test_whatever_a_row_may_have_raised_is_told_with_its_class(text: str, words: str) -> None:
    assert not is_no_rows_fault(Exception(text))
    assert said(Exception(text)) == words


@pytest.mark.parametrize(
    "text",
    [
        f"{JOB}java.lang.OutOfMemoryError: Java heap space",
        f"{JOB}ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        f"{JOB}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).",
        f"{JOB}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): Fatal Python error: A",
        f"{PYTHON}MemoryError",
        f"{PYTHON}numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB",
        f"{PYTHON}holdfast.spark.errors.ConnectionLost: [connection_lost] nobody answers",
        "[SPARK_JOB_CANCELLED] Job 5 cancelled. SQLSTATE: XXKDA",
        ": org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 5 cancelled. SQLSTATE: XXKDA",
    ],
)
def test_machine_broker_or_stop_is_no_rows_fault(text: str) -> None:
    assert is_no_rows_fault(Exception(text))
    assert of_a_row(Exception(text)) is None

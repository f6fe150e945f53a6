"""How long one call of a user's function may take.

A timer sends this process a signal, and its handler raises `CallTimedOut` in the function. That is no `Exception`, so
`except Exception` does not catch it, and it is raised again each second until the call ends. A call in which it was
raised has timed out, whatever it returns or raises then. Code in C is interrupted when it comes back to Python, or when
it looks for signals itself, as `re`, sleeping and sockets do.

A call that goes on all the same, since it catches everything or stays in C, is ended with its process, by a thread of
`faulthandler` that needs no lock of Python's. A process that has ended can tell nothing, so each call writes before it
begins where its messages stand: into the file that Spark tells of when a worker has died. The file has to fit all ways
to die, for nobody changes it then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from holdfast.pipelines.errors import FunctionEnded

# How long a call may go on after it was interrupted, until its process is ended.
GRACE_S: Final = 10.0
_AGAIN_S: Final = 1.0
# Of Spark: the directory in which a worker leaves what is told of its death, under the number of its process.
_LAST_WORDS: Final = "PYTHON_FAULTHANDLER_DIR"
_STDERR: Final = 2
SPARK_SETTINGS: Final = {"spark.sql.execution.pyspark.udf.faulthandler.enabled": "true"}


class CallTimedOut(BaseException):
    """A call has taken longer than it may."""


class CallLimit:
    """Calls functions, one at a time, each for so long at most. A process has one timer, so it has one at work."""

    def __init__(self, limit_s: float, grace_s: float = GRACE_S) -> None:
        self._limit_s = limit_s
        self._grace_s = grace_s
        self._is_running = False
        self._was_at = ""

    def call(self, function: Callable[[], Any], place: str) -> Any:
        """What the function returns. Raises `CallTimedOut`; `place` says where the messages stand."""
        self._was_at = ""
        self._expect_death(place)
        try:
            try:
                returned = self._run(function)
            finally:
                self._stop()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if self._was_at:
                raise CallTimedOut(self._told()) from error
            raise
        finally:
            self._stop()  # the signal may have come on the way into the first one
            self._expect_no_death()
        if self._was_at:
            raise CallTimedOut(self._told())
        return returned

    def _run(self, function: Callable[[], Any]) -> Any:
        # Other threads get no signals. Their calls are only ended with the process.
        if threading.current_thread() is threading.main_thread():
            # It stays: without a handler a signal that comes late would end the process.
            signal.signal(signal.SIGALRM, self._interrupt)
            self._is_running = True
            signal.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)
        return function()

    def _interrupt(self, _number: int, frame: Any) -> None:
        if self._is_running:
            at = "an unknown place" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            self._was_at = self._was_at or at
            raise CallTimedOut(self._told())

    def _stop(self) -> None:
        while self._is_running:
            with contextlib.suppress(CallTimedOut):
                self._is_running = False
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _told(self) -> str:
        return f"the call took longer than {self._limit_s:g} s, and was at {self._was_at}"

    # --- a call that cannot be interrupted --------------------------------------------------------------

    def _expect_death(self, place: str) -> None:
        ends_after_s = self._limit_s + self._grace_s
        told = (
            f"[{FunctionEnded.code}] a worker process ended while the function ran for {place}. Either the function "
            f"ended it, or the call took longer than {self._limit_s:g} s, could not be interrupted, and was stopped "
            f"after {ends_after_s:g} s\n"
        )
        file = _last_words()
        if file != _STDERR:
            # A disk that is full is no message's fault.
            with contextlib.suppress(OSError):
                os.write(file, told.encode())
        faulthandler.dump_traceback_later(ends_after_s, file=file, exit=True)

    def _expect_no_death(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if (file := _last_words()) != _STDERR:
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)


@cache
def _last_words() -> int:
    """The open file that Spark tells of, or what is nearest to it."""
    directory = os.environ.get(_LAST_WORDS)
    if directory is None:
        return _STDERR
    try:
        file = os.open(Path(directory) / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return _STDERR
    # Spark's own would write over it.
    faulthandler.enable(file=file)
    return file

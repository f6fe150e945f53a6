"""What calls from executors have in common: one broker after the other, pauses that grow, and an end.

Standard library only: executors have nothing of ours that is compiled, so neither the client nor its parser.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from holdfast.spark.errors import BrokerAway, with_code

Servers = tuple[tuple[str, int], ...]

BATCHES_TYPE: Final = "application/vnd.holdfast.batches"

# Of a broker, or of something in front of it, that cannot just now.
_PASSING_STATUSES: Final = frozenset((502, 503, 504, 507))
# Each try has a connection of its own, which may be one too many, or stall.
_PASSING_CODES: Final = frozenset(("too_many_connections", "request_timeout"))
# Codes of brokers are lower-case words. Who answers in another way is none, and gets a code that says so.
_CODE: Final = re.compile("[a-z][a-z0-9_]*")
_FOREIGN: Final = "http_"
_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
# How many of the last failures an error tells of.
_FAILURES_TOLD: Final = 4


class BrokerConnection:
    """A connection to one broker, and to the next one when that is wanted."""

    def __init__(self, servers: Servers, turn: int, socket_timeout_s: float) -> None:
        self._servers = servers
        # Tasks begin at different brokers, so that all of them have something to do.
        self._turn = turn % len(servers)
        self._socket_timeout_s = socket_timeout_s
        self._connection: http.client.HTTPConnection | None = None

    @property
    def address(self) -> str:
        return address_of(self._servers[self._turn])

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send a request, on a new connection if there is none; the caller reads the answer's body to its end."""
        if self._connection is None:
            host, port = self._servers[self._turn]
            self._connection = http.client.HTTPConnection(host, port, timeout=self._socket_timeout_s)
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()

    def pass_on(self) -> None:
        """From here on, the next broker is asked."""
        self.close()
        self._turn = (self._turn + 1) % len(self._servers)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """End what another thread waits for on this connection; it fails there."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):  # it has just ended by itself
                connection.sock.shutdown(socket.SHUT_RDWR)


class Patience:
    """The tries of one call."""

    def __init__(self, timeout_s: float, pause: Callable[[float], object] = time.sleep) -> None:
        self._timeout_s = timeout_s
        self._pause = pause
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _PAUSE_S_MIN
        self._failures: list[str] = []

    def wait(self, what: str, failure: str) -> None:
        """Until the next try; raises with what was tried once it has been long enough."""
        self._failures = [*self._failures, failure][-_FAILURES_TOLD:]
        if time.monotonic() > self._deadline:
            raise with_code(
                BrokerAway,
                f"{what} did not get through within {self._timeout_s:g} s (brokerTimeout); lately: "
                + "; ".join(dict.fromkeys(self._failures)),
            ) from None
        self._pause(random.uniform(self._pause_s / 2, self._pause_s))
        self._pause_s = min(_PAUSE_S_MAX, 2 * self._pause_s)


def address_of(server: tuple[str, int]) -> str:
    return f"{server[0]}:{server[1]}"


def is_passing(status: int, code: str) -> bool:
    """Whether a refusal may not come again in a moment, or from the next broker; so may any that no broker has said."""
    return status in _PASSING_STATUSES or code in _PASSING_CODES or is_foreign(code)


def is_foreign(code: str) -> bool:
    """Whether something else has answered, at a broker's address or in between."""
    return code.startswith(_FOREIGN)


def refusal(body: bytes | bytearray, status: int) -> dict[str, Any]:
    """The error in an answer, with at least `code` and `message`; of something that is no broker, what it says."""
    try:
        error = json.loads(body)["error"]
        if not _CODE.fullmatch(error["code"]):
            raise ValueError("this is no code of a broker")
        return {**error, "message": str(error["message"])}
    except (ValueError, KeyError, TypeError):
        return {
            "code": f"{_FOREIGN}{status}",
            "message": f"answered {status}: {bytes(body[:200]).decode('utf-8', 'replace')}",
        }


def why(failure: Exception) -> str:
    """A failure in words; some have none of their own."""
    return str(failure) or type(failure).__name__

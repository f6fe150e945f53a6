"""The short way for small calls: one message a request is what most clients send, and a request costs more than that.

A call that arrives in one piece, with nothing unusual in its head, is answered without the parser, the task and the
application that every other request gets. Whether a head is usual is found out once for each that differs in more than
its length, and by rules that leave no doubt what the parser would have made of it; everything else, and every head
that is in doubt, goes the general way. Both ways run the same checks and the same call, and answer the same bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from holdfast.frontends.http.errors import error_response
from holdfast.frontends.http.exchange import JSON_TYPE, BodyBudget, Response
from holdfast.frontends.http.origin import OriginRule
from holdfast.model.errors import HoldfastError, Internal
from holdfast.model.limits import KIB

Begun = tuple[asyncio.Future[Any], Callable[[Any], Response]]


class ShortCall(NamedTuple):
    """A call that may go this way. `begin` gives a future, and what makes an answer of it; or none: the general way."""

    operation: str
    begin: Callable[[bytes], Begun | None]


class Desk(Protocol):
    """Whose calls these are: what its requests hold, and what is counted and said of them."""

    budget: BodyBudget
    answers: Counter[tuple[str, int]]

    @property
    def errors(self) -> Counter[str]: ...

    def log(self, event: str, /, **fields: object) -> None: ...


_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,7})\r\n")
_FIELD: Final = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+): ?([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?\Z")
# A head that has one of these is for somebody who understands it.
_UNUSUAL: Final = frozenset((b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"te", b"trailer"))
# Heads that are known to be usual; and how long one may be.
_HEADS_MAX: Final = 256
_HEAD_BYTES_MAX: Final = 4 * KIB


class ShortWay:
    """What all connections of one address share."""

    def __init__(self, desk: Desk, calls: Mapping[bytes, ShortCall], origin: OriginRule) -> None:
        self._desk = desk
        # By the first line of their requests.
        self._calls = calls
        self._first_line_bytes_max = max(map(len, calls), default=0)
        self._origin = origin
        self._heads: dict[bytes, bool] = {}

    def call_of(self, data: bytes) -> ShortCall | None:
        """The call that these bytes begin, if it is one that may go this way."""
        end = data.find(b"\r\n", 0, self._first_line_bytes_max)
        return None if end < 0 else self._calls.get(data[: end + 2])

    def body_of(self, data: bytes) -> bytes | None:
        """The body of a request that may go this way; none if it may not."""
        end = data.find(_HEAD_END, 0, _HEAD_BYTES_MAX)
        if end < 0:
            return None
        length = _LENGTH.search(data, 0, end + 2)
        if length is None or len(data) != end + len(_HEAD_END) + int(length[1]):
            return None
        if int(length[1]) > self._desk.budget.request_bytes_max:
            return None
        # All but the length: it is the same for all requests of a client.
        head = data[: length.start(1)] + data[length.end(1) : end]
        is_usual = self._heads.get(head)
        if is_usual is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            is_usual = self._heads[head] = self._is_usual(data[data.index(b"\r\n") + 2 : end])
        return data[end + len(_HEAD_END) :] if is_usual else None

    def _is_usual(self, lines: bytes) -> bool:
        headers: dict[bytes, bytes] = {}
        for line in lines.split(b"\r\n"):
            field = _FIELD.match(line)
            if field is None:
                return False
            name, value = field[1].lower(), field[2] or b""
            if name in headers or name in _UNUSUAL:
                return False
            headers[name] = value
        if headers.get(b"content-type") != JSON_TYPE.encode() or b"host" not in headers:
            return False
        if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return False
        try:
            self._origin.check(headers, changes_state=True)
        except HoldfastError:
            return False
        return True

    def take(self, call: ShortCall, body: bytes, on_answer: Callable[[bytes], None]) -> bool:
        """Do a call, and call back with what is to be written. False if it has to go the general way."""
        budget = self._desk.budget
        try:
            budget.take(len(body))
        except HoldfastError as error:
            on_answer(self._refused(call, error))
            return True
        try:
            begun = call.begin(body)
        except Exception as error:  # noqa: BLE001 - a bug in one call must not end the connection silently
            budget.bytes_used -= len(body)
            on_answer(self._failed(call, error))
            return True
        if begun is None:
            budget.bytes_used -= len(body)
            return False
        done, response_of = begun

        def answer(finished: asyncio.Future[Any]) -> None:
            budget.bytes_used -= len(body)
            on_answer(self._answer(call, finished, response_of))

        done.add_done_callback(answer)
        return True

    def _answer(self, call: ShortCall, done: asyncio.Future[Any], response_of: Callable[[Any], Response]) -> bytes:
        try:
            return self._written(call, response_of(done.result()))
        except Exception as error:  # noqa: BLE001 - a bug in one call must not end the connection silently
            return self._failed(call, error)

    def _failed(self, call: ShortCall, error: Exception) -> bytes:
        if not isinstance(error, HoldfastError):
            self._desk.log("http_request_failed", operation=call.operation, error=repr(error))
            error = Internal("the broker failed to do this; its log says why")
        return self._refused(call, error)

    def _refused(self, call: ShortCall, error: HoldfastError) -> bytes:
        self._desk.errors[error.code] += 1
        return self._written(call, error_response(error))

    def _written(self, call: ShortCall, response: Response) -> bytes:
        self._desk.answers[call.operation, response.status] += 1
        fields = b"".join(b"%b: %b\r\n" % field for field in response.headers)
        return b"%bx-content-type-options: nosniff\r\n%bcontent-length: %d\r\n\r\n%b" % (
            STATUS_LINE[response.status],
            fields,
            len(response.body),
            response.body,
        )

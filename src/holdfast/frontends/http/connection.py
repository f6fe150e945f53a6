"""One HTTP connection: uvicorn's protocol with the bounds it lacks.

uvicorn's httptools protocol waits for ever for the rest of a request, takes headers of any length, and
says in plain text what goes wrong before an application is called. Here a request that has begun has
to go on, headers have a size, an answer has to be taken, and every error has the shape that all errors
of this interface have.

No connection has a timer of its own: it notes since when it waits, and the server sweeps over all of
them every few seconds.

Small calls take a short way past the parser (`short_way.py`): between two requests, and one at a time. What comes
meanwhile is held until the answer has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.broker.outgoing import Outgoing, Taking
from holdfast.frontends.http.errors import error_body
from holdfast.frontends.http.short_way import ShortCall, ShortWay
from holdfast.frontends.untaken import untaken_bytes
from holdfast.model.errors import BadHttp, HeadersTooLarge, HoldfastError, RequestTimeout, TooManyConnections
from holdfast.model.limits import KIB, SUBSCRIBER_PIECE_BYTES_MIN

# Up to here a copy is cheaper than another write.
_JOINED_BYTES_MAX: Final = 64 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one connection may take of space and time."""

    connections_max: int
    # Eight times what browsers send; a Last-Event-ID of a thousand partitions fits. Counted from the
    # second piece that is received on, because the first is in memory already.
    headers_bytes_max: int = 64 * KIB
    # From the first byte of a request, or the opening of the connection, to the last header.
    headers_timeout_s: float = 20.0
    # Between two pieces of a body, however long the whole takes.
    body_silence_s: float = 30.0
    # The rest of a body that was refused is read and dropped, so that the refusal arrives: for so long.
    refused_body_s: float = 10.0
    # How long the other side may leave what was written to it untouched.
    write_stall_s: float = 120.0
    # How often all of these times are looked at.
    sweep_interval_s: float = 2.0


class Connection(HttpToolsProtocol):
    """A connection that cannot be held open by doing nothing."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        *,
        bounds: Bounds,
        short_way: ShortWay,
        logger: logging.Logger,
        on_refused: Callable[[], None],
        on_lost: Callable[[], None],
        outgoing: Outgoing | None = None,
    ) -> None:
        super().__init__(config, server_state, {})
        self.logger = logger
        self._bounds = bounds
        self._on_refused = on_refused
        self._on_lost = on_lost
        # Where what is written and not taken counts.
        self._outgoing = outgoing
        self._held_bytes = 0
        self._taking = Taking()
        self._headers_bytes = 0
        self._headers_since_s: float | None = None
        self._body_since_s: float | None = None
        self._refused_since_s: float | None = None
        self._stalled_since_s: float | None = None
        self._short_way = short_way
        # Whether the parser is between two requests, whether a call is on its short way, and what came meanwhile.
        self._is_between = True
        self._is_short = False
        self._held: list[bytes] = []
        self._answered_s: float | None = None
        self._is_leaving = False

    # --- what the transport calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        full = len(self.connections) >= self._bounds.connections_max
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=SUBSCRIBER_PIECE_BYTES_MIN)
        self._headers_since_s = self.loop.time()
        if full:
            self._on_refused()
            self._refuse(TooManyConnections(f"{self._bounds.connections_max} connections are open, which is the most"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._count_held(0)
        super().connection_lost(exc)
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_short:
            self._held.append(data)
            self.flow.pause_reading()
            return
        call = self._short_way.call_of(data)
        if call is not None and self._is_idle and self._take(call, data):
            return
        self._answered_s = None
        if self._body_since_s is not None:
            self._body_since_s = self.loop.time()
        headers_since_s = self._headers_since_s
        super().data_received(data)
        # Unchanged and not None: all of it went into headers that had begun before and are not complete.
        if headers_since_s is not None and headers_since_s == self._headers_since_s:
            self._headers_bytes += len(data)
            if self._headers_bytes > self._bounds.headers_bytes_max and not self.transport.is_closing():
                self._refuse(
                    HeadersTooLarge(f"the request's headers have more than {self._bounds.headers_bytes_max} bytes")
                )

    # --- the short way ------------------------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        """Whether everything that came before is answered."""
        return self._is_between and (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    def _take(self, call: ShortCall, data: bytes) -> bool:
        if self.flow.write_paused:
            return False  # answers are not taken: the general way waits until they are
        body = self._short_way.body_of(data)
        if body is None:
            return False
        self._is_short = True
        if not self._short_way.take(call, body, self._answered):
            self._is_short = False
            return False
        self._unset_keepalive_if_required()
        self._headers_since_s = None
        return True

    def _answered(self, answer: bytes) -> None:
        """The answer leaves, and what came meanwhile is looked at."""
        self._is_short = False
        self._headers_since_s = None
        self._answered_s = self.loop.time()
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        if self._is_leaving:
            self.transport.close()
        elif self._held:
            held, self._held = b"".join(self._held), []
            self.flow.resume_reading()
            self.data_received(held)

    def shutdown(self) -> None:
        """Take nothing new; a call that is under way is answered first."""
        self._is_leaving = True
        if not self._is_short:
            super().shutdown()

    def pause_writing(self) -> None:
        self._stalled_since_s = self.loop.time()
        self._count_held(self.transport.get_write_buffer_size())
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since_s = None
        self._taking.forget()
        self._count_held(0)
        super().resume_writing()

    def _count_held(self, size: int) -> None:
        if self._outgoing is not None:
            self._outgoing.hold(size - self._held_bytes)
            self._held_bytes = size

    def _is_in_the_way(self, now_s: float) -> bool:
        """Whether room is short, and this client leaves what it was given."""
        if self._outgoing is None or not self._outgoing.is_short or self._stalled_since_s is None:
            return False
        untaken = untaken_bytes(self.transport)
        return untaken is not None and self._taking.has_stalled(untaken, now_s)

    # --- what the parser calls ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._is_between = False
        self._headers_bytes = 0
        self._headers_since_s = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._headers_since_s = None
        if self.parser.should_upgrade() and any(_announces_body(*field) for field in self.headers):
            raise _UpgradeWithBody
        self._body_since_s = self.loop.time()
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":
            self.cycle.transport = HeadWithBody(self.transport, self.cycle)

    def on_message_complete(self) -> None:
        self._is_between = True
        self._body_since_s = self._refused_since_s = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.parser.should_upgrade():
            self._refuse(BadHttp("only HTTP/1.1 is spoken here; send a request that has a body without Upgrade"))
        else:
            self._refuse(BadHttp("this is not an HTTP/1.1 request; GET /docs shows every call"))

    # --- bounds -------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close the connection if it has stood still for too long."""
        bounds = self._bounds
        if _older(self._stalled_since_s, now_s, bounds.write_stall_s) or self._is_in_the_way(now_s):
            # Closed on our side or not: what was written is not taken.
            self.transport.abort()
        elif self.transport.is_closing():
            pass
        elif _older(self._headers_since_s, now_s, bounds.headers_timeout_s):
            self._refuse(RequestTimeout(f"no complete headers within {bounds.headers_timeout_s:g} s"))
        elif self._is_idle and not self._is_short and _older(self._answered_s, now_s, self.timeout_keep_alive):
            self.transport.close()
        elif self._body_since_s is not None and not self.flow.read_paused:
            self._sweep_body(self._body_since_s, now_s)

    def _sweep_body(self, body_since_s: float, now_s: float) -> None:
        if self.cycle.response_complete:
            self._refused_since_s = self._refused_since_s or now_s
            if _older(self._refused_since_s, now_s, self._bounds.refused_body_s):
                self.transport.close()
        elif not self.cycle.response_started and _older(body_since_s, now_s, self._bounds.body_silence_s):
            self._refuse(RequestTimeout(f"the body stood still for {self._bounds.body_silence_s:g} s"))

    def _refuse(self, error: HoldfastError) -> None:
        """Answer without an application, and close."""
        body = msgspec.json.encode(error_body(error))
        parts = [STATUS_LINE[error.http_status]]
        parts += [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        parts.append(b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join((*parts, body)))
        self.transport.close()


class _UpgradeWithBody(Exception):
    """The parser ends a request that asks for another protocol with its headers: its body would be the next one."""


class HeadWithBody(asyncio.Transport):
    """Holds an answer's head back until its body comes, so that both leave in one write.

    uvicorn writes them one after the other. That is a second system call and a second packet for every
    answer, and with small ones most of what the answer costs.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None
        self._head_left = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._head_left or not self._cycle.response_started:
            # A piece of the body, or the "100 Continue" before any answer.
            self._transport.write(data)
        elif self._head is None:
            self._head = bytes(data)
        else:
            self._head_left = True
            # The rest does not come this way, and an answer that is over holds nothing.
            self._cycle.transport = self._transport
            if len(data) > _JOINED_BYTES_MAX:
                self._transport.write(self._head)
                self._transport.write(data)
            else:
                self._transport.write(self._head + data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()


def _announces_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" \t0") != b"")


def _older(since_s: float | None, now_s: float, than_s: float) -> bool:
    return since_s is not None and now_s - since_s > than_s

"""One TCP connection between two nodes: bytes in, whole frames out, and none of their bodies copied.

Bytes are read into a buffer that many small frames share, filled from its beginning to its end. A frame that does
not fit into what is left of it gets a place of exactly its size, and the rest of it is read to there directly;
only what had come of it before is moved. Whoever holds a slice of a frame holds its buffer: bytes that were
handed out are never overwritten, a new buffer takes the place of one that is full.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from holdfast.model.errors import BadPeerFrame
from holdfast.model.limits import KIB, PEER_FRAME_BYTES_MAX, PEER_HELLO_BYTES_MAX, PEER_WRITE_BUFFER_BYTES_MAX
from holdfast.wire import peer
from holdfast.wire.peer import Buffer

# Small enough to be cheap to make anew, large enough for thousands of answers and heartbeats.
_SHARED_BYTES: Final = 256 * KIB
# With less room than this left, reading on would take many small steps.
_ROOM_BYTES_MIN: Final = 16 * KIB


class FrameConnection(asyncio.BufferedProtocol):
    """Reads frames and hands each to `frame_received`; what they mean is the business of derived classes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_closed = False
        self._is_write_paused = False
        self._frame_bytes_max = PEER_HELLO_BYTES_MAX
        # Of the protocol; both sides' HELLOs say what it is.
        self.version = peer.PROTOCOL_VERSION
        self._shared = memoryview(bytearray(_SHARED_BYTES))
        # Frames begin at `_begin`, bytes are there up to `_filled`.
        self._begin = 0
        self._filled = 0
        # Whether somebody may hold a slice of the shared buffer.
        self._is_shared_kept = False
        # A large frame under way: its kind, its body's own place, and how much of it is there.
        self._large: memoryview | None = None
        self._large_kind = 0
        self._large_end = 0

    # --- what derived classes say to it, and it to them -----------------------------------------------

    def frame_received(self, kind: int, body: memoryview) -> bool:
        """Take a frame; returns whether slices of it may be kept. Raises `BadPeerFrame` for one that cannot be."""
        raise NotImplementedError

    def bytes_received(self) -> None:
        """Something came, be it a part of a frame."""

    def bad_frame(self, error: BadPeerFrame) -> None:
        """The bytes make no sense; nothing more is read."""
        raise NotImplementedError

    def opened(self) -> None:
        raise NotImplementedError

    def lost(self, error: Exception | None) -> None:
        """The connection is gone; called once, at an EOF too."""
        raise NotImplementedError

    def agree(self, version: int) -> None:
        """From now on this version of the protocol is spoken."""
        self.version = version

    def trust(self) -> None:
        """The other side has said who it is: frames may be large now."""
        self._frame_bytes_max = PEER_FRAME_BYTES_MAX

    # --- the protocol's events --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed:
            self._transport.abort()  # it came too late
            return
        self._transport.set_write_buffer_limits(high=PEER_WRITE_BUFFER_BYTES_MAX // 2)
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_end :]
        return self._shared[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        self.bytes_received()
        try:
            if self._large is not None:
                self._large_end += nbytes
                if self._large_end == len(self._large):
                    body, self._large = self._large, None
                    self.frame_received(self._large_kind, body)
            else:
                self._filled += nbytes
                self._read_frames()
        except BadPeerFrame as error:
            if not self._is_closed:
                self.bad_frame(error)

    def _read_frames(self) -> None:
        shared, begin, end = self._shared, self._begin, self._filled
        while self._is_reading and end - begin >= peer.HEAD_BYTES:
            kind, size = peer.read_head(shared, begin, self._frame_bytes_max, self.version)
            body_begin = begin + peer.HEAD_BYTES
            if body_begin + size > end:
                if body_begin + size > _SHARED_BYTES:
                    self._begin_large(kind, size, shared[body_begin:end])
                    return
                break
            begin = body_begin + size
            if self.frame_received(kind, shared[body_begin:begin]):
                self._is_shared_kept = True
            if self._is_closed:
                return
        self._begin = begin
        if begin == end and not self._is_shared_kept:
            self._begin = self._filled = 0
        elif _SHARED_BYTES - end < _ROOM_BYTES_MIN:
            self._begin_shared(shared[begin:end])

    def _begin_large(self, kind: int, size: int, there: memoryview) -> None:
        self._large = memoryview(bytearray(size))
        self._large[: len(there)] = there
        self._large_kind = kind
        self._large_end = len(there)
        self._begin_shared(there[:0])

    def _begin_shared(self, rest: memoryview) -> None:
        if self._is_shared_kept:
            self._shared = memoryview(bytearray(_SHARED_BYTES))
            self._is_shared_kept = False
        self._shared[: len(rest)] = rest
        self._begin, self._filled = 0, len(rest)

    def eof_received(self) -> bool:
        # Nodes never close one half only: whoever does not send any more is gone.
        self._lose(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)
        # Whoever still holds this connection does not hold its buffers.
        self._shared = memoryview(b"")
        self._large = None

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.lost(error)
            self.abort()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False

    # --- flow -------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def address(self) -> str:
        """Where the other side is, for log lines."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "nowhere"

    @property
    def own_host(self) -> str | None:
        """Under which of its addresses this node goes to the other side."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return str(name[0]) if name else None

    def write(self, buffers: list[Buffer]) -> None:
        if not self._is_closed and self._transport is not None:
            self._transport.writelines(buffers)

    def set_reading(self, wanted: bool) -> None:
        """Whether frames are taken; those that have come already wait too."""
        if wanted == self._is_reading or self._is_closed or self._transport is None:
            return
        self._is_reading = wanted
        if wanted:
            # Not at once: this may be said from within a frame.
            self._loop.call_soon(self._read_on)
        else:
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if not self._is_reading or self._is_closed or self._transport is None:
            return
        try:
            self._read_frames()
        except BadPeerFrame as error:
            if not self._is_closed:
                self.bad_frame(error)
        if self._is_reading and not self._is_closed and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self, last_words: bytes = b"") -> None:
        """Close without calling `lost`; `last_words` are sent if the other side reads them."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._transport is None:
            return
        if last_words and not self._transport.is_closing():
            self._transport.write(last_words)
            self._transport.close()
        else:
            self._transport.abort()

    def abort(self) -> None:
        """Close it whatever was not sent yet; `lost` is called if it was not closed before."""
        if self._transport is not None:
            self._transport.abort()

    def set_patience(self, timeout_s: float) -> None:
        """Give up when sent bytes were not acknowledged for so long: the other machine is gone.

        Without this, the kernel tries for a quarter of an hour, in ever longer steps, and a network that works
        again is noticed late.
        """
        connected = None if self._transport is None else self._transport.get_extra_info("socket")
        if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1000)))

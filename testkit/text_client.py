"""A text client made of nothing but a socket."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Iterable

from testkit.wait import PATIENCE_S

CONNACK = b"CONNACK|Connected to Message Broker"
PUBACK = b"PUBACK|Published successfully"
SUBACK = b"SUBACK|Subscribed successfully"
UNSUBACK = b"UNSUBACK|Unsubscribed successfully"


class TextClient:
    """Sends lines, reads lines; everything it waits for has a deadline."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        greeted: bool = True,
        receive_buffer_bytes: int | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            self.socket.connect(address)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._buffer = b""
            if greeted:
                self.expect(CONNACK)
        except BaseException:
            self.socket.close()
            raise

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, *lines: bytes) -> None:
        """Send lines in one chunk."""
        self.send(b"".join(line + b"\n" for line in lines))

    def line(self) -> bytes:
        """The next line, without its end; raises `EOFError` where the broker closed instead."""
        return self.lines(1)[0]

    def lines(self, count: int) -> list[bytes]:
        pieces, missing = [self._buffer], count - self._buffer.count(b"\n")
        try:
            while missing > 0:
                data = self.socket.recv(1 << 18)
                if not data:
                    raise EOFError(f"the broker closed the connection; left is {pieces[-1][-200:]!r}")
                pieces.append(data)
                missing -= data.count(b"\n")
        finally:
            self._buffer = b"".join(pieces)
        *lines, self._buffer = self._buffer.split(b"\n", count)
        return lines

    def expect(self, *expected: bytes) -> None:
        for each in expected:
            got = self.line()
            assert got == each, f"expected {each!r}, got {got!r}"

    def expect_error(self, code: str) -> bytes:
        line = self.line()
        assert line.startswith(b"ERROR|" + code.encode() + b"|"), line
        text = line.split(b"|", 2)[2]
        assert text, "an error without a word of help"
        return text

    def ask(self, line: bytes) -> bytes:
        self.say(line)
        return self.line()

    def is_quiet(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes for a while."""
        if self._buffer:
            return False
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self._buffer += self.socket.recv(1 << 16)
            return False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(before)

    def rest(self) -> list[bytes]:
        """Whole lines until the connection ends, however it ends."""
        with contextlib.suppress(ConnectionError):
            while data := self.socket.recv(1 << 16):
                self._buffer += data
        *lines, _ = self._buffer.split(b"\n")
        self._buffer = b""
        return lines

    def wait_closed(self) -> None:
        assert self.rest() == []

    def half_close(self) -> None:
        """Send nothing more, and still listen."""
        self.socket.shutdown(socket.SHUT_WR)

    def waiting_bytes(self) -> int:
        """Bytes this machine has taken from the broker and nobody has read yet."""
        return int(struct.unpack("i", fcntl.ioctl(self.socket.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0])

    def peek_lines(self) -> list[bytes]:
        """Whole lines that are here, without taking them."""
        data = self._buffer
        if waiting := self.waiting_bytes():
            data += self.socket.recv(waiting, socket.MSG_PEEK)
        return data.split(b"\n")[:-1]

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close as a machine that crashes does: the other side gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> TextClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def publishes(topic: str, values: Iterable[bytes]) -> bytes:
    """The lines of a pipelined publish."""
    return b"".join(b"PUBLISH|%b|%b\n" % (topic.encode(), value) for value in values)

"""A partner made of sockets: the other broker of a plain pair as somebody else may have written it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.testing.ports import free_port

HEARTBEAT_MS = 100
MISSES = 4
_BEATS = {b"HEARTBEAT": b"HEARTBEAT_ACK\n", b"PING||": b"PONG\n"}


def confirming(line: bytes) -> bytes:
    """Answer a replica as a backup does that has stored it."""
    return b"REPLICATED|%s\n" % line.split(b"|")[2] if line.startswith(b"REPLICATE|") else b""


def silent(line: bytes) -> bytes:
    return b""


class Partner:
    """Takes connections on its port, answers heartbeats, and writes down every other line that comes.

    `answers` says what it answers to those; `on_role` what to the packet that only ours know: nothing, an error, or
    `None` to close the connection.
    """

    def __init__(self, answers: Callable[[bytes], bytes] = confirming, *, on_role: bytes | None = b"") -> None:
        self.port = free_port()
        self.answers = answers
        self.on_role = on_role
        self.is_silent = False
        self.beats = 0
        self.dials = 0
        self.lines: list[bytes] = []
        self._connections: list[socket.socket] = []
        self._server: socket.socket | None = None
        self.open()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """Die: connections break, and new ones are refused."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        connections, self._connections = self._connections, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, line: bytes) -> None:
        """Over the newest connection."""
        self._connections[-1].sendall(line + b"\n")

    def wait_for(self, *starts: bytes) -> list[bytes]:
        """Until a line came that begins so, for each; all lines then."""
        wait_until(
            lambda: all(any(line.startswith(start) for line in self.lines) for start in starts),
            f"lines {starts!r} among {self.lines[-20:]!r}",
        )
        return list(self.lines)

    def packets(self, command: bytes, count: int = 0) -> list[list[bytes]]:
        """The fields of all packets of a kind, once there are so many."""

        def found() -> list[list[bytes]]:
            return [line.split(b"|") for line in list(self.lines) if line.startswith(command + b"|")]

        wait_until(lambda: len(found()) >= count, f"{count} packets {command!r}")
        return found()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                self.dials += 1
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as file:
            for ended in file:
                line = ended.rstrip(b"\n")
                if line.startswith(b"ROLE|"):
                    if self.on_role is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    answer = self.on_role
                elif line in _BEATS:
                    self.beats += 1
                    answer = _BEATS[line]
                else:
                    self.lines.append(line)
                    answer = self.answers(line)
                if answer and not self.is_silent:
                    connection.sendall(answer)


def plain(root: Path, role: str, partner: str, *flags: str, node: str = "n1", text_port: int = 0) -> BrokerProcess:
    """A broker of a plain pair; start it."""
    return BrokerProcess(
        root / node,
        *("--node", node, "--pair", role, "--plain-partner", partner),
        *("--heartbeat-ms", str(HEARTBEAT_MS), "--misses", str(MISSES), *flags),
        text_port=text_port or free_port(),
        http_port=free_port(),
        files=root,
    )


def status(broker: BrokerProcess) -> dict[str, object]:
    found: dict[str, object] = broker.json("GET", "/v1/cluster")["pair"]
    return found


def wait_until_in_step(broker: BrokerProcess) -> None:
    wait_until(
        lambda: status(broker)["role"] == "primary" and status(broker)["is_alone"] is False,
        "the backup has everything",
    )


def wait_until_alone(broker: BrokerProcess) -> None:
    wait_until(lambda: status(broker)["role"] == "primary" and status(broker)["is_alone"] is True, "it is alone")

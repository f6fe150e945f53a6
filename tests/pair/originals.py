"""Partners made of sockets that behave like the two programs whose packets a plain pair speaks.

`AckPrimary` and `AckBackup` speak the `ack` dialect, with `REPLICATE|topic|payload` and `PING||`; `NumberedPrimary` and
`NumberedBackup` speak the standard dialect with message ids and sequence numbers. They read, answer, wait, close and
forget what those programs do, also where another program would not. `hang` and `go_on` are SIGSTOP and SIGCONT, `kill`
is SIGKILL. The two publishers resend and judge answers like those programs, too.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from holdfast.testing.ports import free_port

COMPUTE_S: Final = (0.05, 0.15)
# They look each second, and wait for 200 to 500 ms; these look more often and are not misled by a busy machine.
ALIVE_CHECK_S: Final = 0.25
ALIVE_ANSWER_S: Final = 2.0
Address = tuple[str, int]


class Original:
    """One process: a thread that reads each connection, and one that does what the lines ask for, in their order."""

    greeting = b""
    queued_max = 100

    def __init__(self, *, compute_s: tuple[float, float] = COMPUTE_S, own_port: int | None = None) -> None:
        self.port = own_port or free_port()
        self.compute_s = compute_s
        self.delivered: list[str] = []
        self.lines: list[str] = []
        self.subscribers: dict[str, list[socket.socket]] = {}
        self._events: queue.Queue[Callable[[], None] | None] = queue.Queue(self.queued_max)
        self._runs = threading.Event()
        self._runs.set()
        self._is_killed = False
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", self.port))
        for work in (self._accept, self._apply):
            threading.Thread(target=work, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def hang(self) -> None:
        self._runs.clear()

    def go_on(self) -> None:
        self._runs.set()

    def kill(self) -> None:
        self._is_killed = True
        for each in (self._server, *self._sockets):
            _end(each)
        self._runs.set()
        with contextlib.suppress(queue.Full):
            self._events.put_nowait(None)

    def dial(self, address: Address, timeout_s: float | None = None) -> socket.socket:
        connection = socket.create_connection(address, timeout_s)
        self._sockets.append(connection)
        return connection

    # --- what the programs differ in ------------------------------------------------------------------

    def on_line(self, connection: socket.socket, line: str) -> bool:
        """A line has come, on the thread of its connection; whether more is read from it."""
        raise NotImplementedError

    # --- threads --------------------------------------------------------------------------------------

    def later(self, work: Callable[[], None]) -> None:
        self._events.put(work)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._sockets.append(connection)
                self._runs.wait()
                if self._is_killed:
                    _end(connection)
                    return
                say(connection, self.greeting)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as file:
            for raw in file:
                self._runs.wait()
                if self._is_killed:
                    return
                line = raw.decode().strip()
                if line:
                    self.lines.append(line)
                    if not self.on_line(connection, line):
                        return
        _end(connection)

    def _apply(self) -> None:
        while (work := self._events.get()) is not None:
            self._runs.wait()
            if self._is_killed:
                return
            work()

    # --- what they have in common ---------------------------------------------------------------------

    def compute(self) -> None:
        time.sleep(random.uniform(*self.compute_s))

    def deliver(self, topic: str, payload: str, line: str) -> None:
        self.delivered.append(payload)
        for subscriber in list(self.subscribers.get(topic, ())):
            if not say(subscriber, line.encode()):
                self.subscribers[topic].remove(subscriber)

    def subscribe(self, topic: str, connection: socket.socket) -> None:
        self.subscribers.setdefault(topic, []).append(connection)


def say(connection: socket.socket, data: bytes) -> bool:
    """Whether the machine took it."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


# --- the `ack` dialect ------------------------------------------------------------------------------------


class _Ack(Original):
    queued_max = 10

    def on_line(self, connection: socket.socket, line: str) -> bool:
        command, *rest = (field.strip() for field in line.split("|", 2))
        if not rest:
            _end(connection)  # also of a bare PING: a packet has two fields at least
            return False
        topic, payload = rest[0], rest[1] if len(rest) == 2 else ""
        return self.on_packet(connection, command, topic, payload)

    def on_packet(self, connection: socket.socket, command: str, topic: str, payload: str) -> bool:
        raise NotImplementedError


class AckPrimary(_Ack):
    """Dials its backup once, says `ACK` before it computes, and never reads what the backup answers."""

    def __init__(self, backup: Address, *, compute_s: tuple[float, float] = COMPUTE_S) -> None:
        super().__init__(compute_s=compute_s)
        self._backup: socket.socket | None = None
        threading.Thread(target=self._dial_backup, args=(backup,), daemon=True).start()

    @property
    def has_backup(self) -> bool:
        return self._backup is not None

    def _dial_backup(self, address: Address) -> None:
        while not self._is_killed:
            try:
                self._backup = self.dial(address)
                return
            except OSError:
                time.sleep(ALIVE_CHECK_S)

    def on_packet(self, connection: socket.socket, command: str, topic: str, payload: str) -> bool:
        if command == "PING":
            say(connection, b"PONG\n")
            return True
        if command == "PUBLISH":
            if self._backup is not None and not say(self._backup, f"REPLICATE|{topic}|{payload}\n".encode()):
                self._backup = None
            say(connection, b"ACK\n")
            self.later(lambda: self._publish(connection, topic, payload))
            return False
        if command == "SUBSCRIBE":
            self.later(lambda: self.subscribe(topic, connection))
        return True

    def _publish(self, connection: socket.socket, topic: str, payload: str) -> None:
        self.compute()
        self.deliver(topic, payload, payload + "\n")
        if self._backup is not None:
            say(self._backup, f"CLEAR|{topic}|{payload}\n".encode())
        _end(connection)


class AckBackup(_Ack):
    """Asks over a new connection again and again, answers no PING, and drops publishes while the primary is up."""

    def __init__(
        self, primary: Address, *, compute_s: tuple[float, float] = COMPUTE_S, own_port: int | None = None
    ) -> None:
        super().__init__(compute_s=compute_s, own_port=own_port)
        self.held: dict[tuple[str, str], None] = {}
        self.is_primary_alive = True
        threading.Thread(target=self._check, args=(primary,), daemon=True).start()

    def on_packet(self, connection: socket.socket, command: str, topic: str, payload: str) -> bool:
        if command == "REPLICATE":
            self.later(lambda: self.held.__setitem__((topic, payload), None))
        elif command == "CLEAR":
            self.later(lambda: self.held.pop((topic, payload), None))
        elif command == "SUBSCRIBE":
            self.later(lambda: self.subscribe(topic, connection))
        elif command == "PUBLISH":
            self.later(lambda: self._publish(connection, topic, payload))
            return False
        return True

    def _publish(self, connection: socket.socket, topic: str, payload: str) -> None:
        if not self.is_primary_alive:
            self.compute()
            self.deliver(topic, payload, payload + "\n")
            _end(connection)

    def _check(self, primary: Address) -> None:
        while not self._is_killed:
            time.sleep(ALIVE_CHECK_S)
            self._runs.wait()
            was_alive, self.is_primary_alive = self.is_primary_alive, self._is_alive(primary)
            if was_alive and not self.is_primary_alive:
                for topic, payload in list(self.held):
                    self.compute()
                    self.deliver(topic, payload, payload + "\n")
                self.held.clear()

    def _is_alive(self, primary: Address) -> bool:
        try:
            with socket.create_connection(primary, ALIVE_ANSWER_S) as connection:
                connection.sendall(b"PING||\n")
                return connection.makefile("rb").readline().strip() == b"PONG"
        except OSError:
            return False


# --- the standard dialect, with numbers ---------------------------------------------------------------------


class _Numbered(Original):
    """One thread does everything: while it computes, nobody is answered, not even a HEARTBEAT."""

    greeting = b"CONNACK|Connected to Message Broker\n"

    def on_line(self, connection: socket.socket, line: str) -> bool:
        self.later(lambda: self._do(connection, line))
        return True

    def _do(self, connection: socket.socket, line: str) -> None:
        command = line.partition("|")[0].upper()
        fields = line.split("|", {"PUBLISH": 2, "SUBSCRIBE": 1}.get(command, 4))[1:]
        if command == "HEARTBEAT":
            say(connection, b"HEARTBEAT_ACK\n")
        elif command == "HEARTBEAT_ACK":
            pass
        elif command == "SUBSCRIBE" and fields and fields[0]:
            self.subscribe(fields[0], connection)
            say(connection, b"SUBACK|Subscribed successfully\n")
        elif command == "PUBLISH" and len(fields) == 2 and fields[0]:
            self.publish(*fields)
            say(connection, b"PUBACK|Published successfully\n")
            _end(connection)
        elif command == "REPLICATE" and len(fields) == 4 and _is_number(fields[1]) and fields[2]:
            self.replicate(fields[0], int(fields[1]), *fields[2:])
        elif command == "MARK_DELIVERED" and len(fields) == 2 and _is_number(fields[1]):
            self.mark(fields[0])
        else:
            say(connection, f"ERROR|unknown packet type: {command}\n".encode())

    def publish(self, topic: str, payload: str) -> None:
        raise NotImplementedError

    def replicate(self, message_id: str, number: int, topic: str, payload: str) -> None: ...

    def mark(self, message_id: str) -> None: ...

    def made_id(self) -> str:
        return f"msg-{time.time_ns()}-{random.randrange(10_000)}"


def _is_number(field: str) -> bool:
    return field.lstrip("+-").isdigit()


class NumberedPrimary(_Numbered):
    """Dials its backup with the first publish, waits for its greeting, and never reads another line of it."""

    def __init__(self, backup: Address, *, compute_s: tuple[float, float] = COMPUTE_S) -> None:
        self._address = backup
        self._backup: socket.socket | None = None
        self._number = 0
        super().__init__(compute_s=compute_s)

    def publish(self, topic: str, payload: str) -> None:
        self._number += 1
        number, message_id = self._number, self.made_id()
        self._tell(f"REPLICATE|{message_id}|{number}|{topic}|{payload}\n")
        self.compute()
        self.deliver(topic, payload, f"MESSAGE|{topic}|{payload}\n")
        if self._backup is not None:
            self._tell(f"MARK_DELIVERED|{message_id}|{number}\n")

    def _tell(self, line: str) -> None:
        if self._backup is None:
            try:
                connection = self.dial(self._address)
                connection.settimeout(1)
                connection.recv(1024)
                connection.settimeout(None)
            except OSError:
                return
            self._backup = connection
        if not say(self._backup, line.encode()):
            self._backup = None


class NumberedBackup(_Numbered):
    """Keeps a publish like a replica while the primary is up, and takes over after three failed checks in a row."""

    def __init__(self, primary: Address, *, compute_s: tuple[float, float] = COMPUTE_S) -> None:
        self.held: dict[str, tuple[int, str, str]] = {}
        self.is_primary = False
        self._done: set[str] = set()
        self._number = 0
        super().__init__(compute_s=compute_s)
        threading.Thread(target=self._check, args=(primary,), daemon=True).start()

    def publish(self, topic: str, payload: str) -> None:
        self._number += 1
        if self.is_primary:
            self.compute()
            self.deliver(topic, payload, f"MESSAGE|{topic}|{payload}\n")
        else:
            self.held[self.made_id()] = (self._number, topic, payload)

    def replicate(self, message_id: str, number: int, topic: str, payload: str) -> None:
        if message_id not in self._done:
            self.held[message_id] = (number, topic, payload)

    def mark(self, message_id: str) -> None:
        if self.held.pop(message_id, None) is not None:
            self._done.add(message_id)

    def _check(self, primary: Address) -> None:
        failed = 0
        while failed < 3:
            time.sleep(ALIVE_CHECK_S)
            if self._is_killed:
                return
            self._runs.wait()
            failed = 0 if self._is_alive(primary) else failed + 1
        self.is_primary = True
        for message_id, (_, topic, payload) in sorted(self.held.items(), key=lambda item: item[1][0]):
            self.deliver(topic, payload, f"MESSAGE|{topic}|{payload}\n")
            del self.held[message_id]

    def _is_alive(self, primary: Address) -> bool:
        try:
            with socket.create_connection(primary, ALIVE_ANSWER_S) as connection:
                if not connection.recv(1024).startswith(b"CONNACK"):
                    return False
                connection.sendall(b"HEARTBEAT\n")
                return connection.recv(1024).strip() == b"HEARTBEAT_ACK"
        except OSError:
            return False


# --- publishers ---------------------------------------------------------------------------------------------


def _try(address: Address, line: bytes, *, timeout_s: float, is_greeted: bool, waits: bool) -> bytes:
    """Publish over a connection of its own; the answer, or nothing if none came in time."""
    try:
        with socket.create_connection(address, timeout_s) as connection, connection.makefile("rb") as file:
            if is_greeted and not file.readline():
                return b""
            connection.sendall(line)
            return file.readline() if waits else b"sent"
    except OSError:
        return b""


class AckPublisher:
    """Goes to the backup for good when 500 ms pass without `ACK`, sends the last five again, and waits no more then."""

    def __init__(self, primary: Address, backup: Address, topic: str) -> None:
        self._primary, self._backup, self._topic = primary, backup, topic
        self._recent: list[str] = []
        self.is_with_backup = False

    def publish(self, payload: str) -> None:
        self._recent = [*self._recent, payload][-5:]
        if self.is_with_backup:
            self._send(self._backup, payload, waits=False)
        elif self._send(self._primary, payload, waits=True) != b"ACK\n":
            self.is_with_backup = True
            for each in self._recent:
                self._send(self._backup, each, waits=False)
                time.sleep(0.01)

    def _send(self, address: Address, payload: str, *, waits: bool) -> bytes:
        line = f"PUBLISH|{self._topic}|{payload}\n".encode()
        return _try(address, line, timeout_s=0.5, is_greeted=False, waits=waits)


class NumberedPublisher:
    """Takes any line within 200 ms for success, and goes to the backup for good after three publishes without one."""

    def __init__(self, primary: Address, backup: Address, topic: str) -> None:
        self._current, self._backup, self._topic = primary, backup, topic
        self._failed = 0
        self.is_with_backup = False

    def publish(self, payload: str) -> bool:
        """Whether the next message follows; this one is tried again otherwise."""
        if self._send(payload):
            self._failed = 0
            return True
        self._failed += 1
        if self._failed < 3 or self.is_with_backup:
            return False
        self.is_with_backup, self._failed, self._current = True, 0, self._backup
        return self._send(payload)

    def _send(self, payload: str) -> bool:
        line = f"PUBLISH|{self._topic}|{payload}\n".encode()
        return bool(_try(self._current, line, timeout_s=0.2, is_greeted=True, waits=True))

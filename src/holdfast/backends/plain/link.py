"""The connection to the partner's text port: dials again and again, beats, and says when the partner is gone.

Either of the two has one. Over a primary's go the packets of replication. Before each heartbeat one says where it
stands, and a partner of ours answers likewise; one that does not is foreign, and is not told again on that connection.
An error before the first answer refuses that packet: such a partner has no packets beyond those of the original. A
backup of the `ack` dialect may answer nothing at all: one that takes the connection and never said a word is silent,
and is not asked to prove that it is there (`is_silent`). Any other partner counts as heard when it answers a heartbeat,
not when its machine takes a connection: the machine of a process that hangs does so, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from holdfast.consensus.partner import PairSettings, PartnerWatch
from holdfast.consensus.plain_standing import Standing
from holdfast.model.errors import BadCommand
from holdfast.wire.replication import ROLE, parse_standing

# So often is looked whether the partner was heard.
_LOOK_S: Final = 0.05
# Between two dials, whatever became of the first.
_REDIAL_S: Final = 0.1
# A partner's lines are short; more than this without a line's end is no broker.
_LINE_BYTES_MAX: Final = 64 * 1024
# What the transport may hold before whoever writes has to wait.
_WRITE_BUFFER_BYTES_MAX: Final = 1024 * 1024


class Snapshot(NamedTuple):
    """How much was said when a heartbeat left: entries, and marks of those below; and how many publishes were held."""

    sent: int
    told: int
    held: int = 0


class Listener(Protocol):
    """Who is told what happens."""

    def greeting(self) -> bytes:
        """How this broker says where it stands."""
        ...

    def on_lines(self, lines: Sequence[bytes]) -> None:
        """Lines that are no answer to a heartbeat or a greeting."""
        ...

    def on_beat(self, standing: Standing | None, before: Snapshot) -> None:
        """A heartbeat was answered, by one that stands there, or by a foreign one; what was said before it was read."""
        ...

    def on_silent(self, before: Snapshot | None) -> None:
        """Of a silent partner, with each heartbeat; its machine has taken what was said before, if that is known."""
        ...

    def on_down(self) -> None: ...

    def on_gone(self, why: str) -> None: ...

    def on_back(self) -> None: ...

    def on_look(self, now_s: float) -> None:
        """A moment has passed in which this process did not stand still."""
        ...


class Link:
    """One for a broker; `address` is the partner's, and `said` tells how much was said by now."""

    def __init__(
        self,
        address: tuple[str, int],
        heartbeat: bytes,
        settings: PairSettings,
        listener: Listener,
        said: Callable[[], Snapshot],
        *,
        may_be_silent: bool = False,
    ) -> None:
        self._address = address
        self._heartbeat = heartbeat
        self._settings = settings
        self._listener = listener
        self._said = said
        self._may_be_silent = may_be_silent
        self.is_silent = False
        self._loop = asyncio.get_running_loop()
        self._watch = PartnerWatch(settings, self._loop.time())
        self._writer: asyncio.StreamWriter | None = None
        self._beats: deque[Snapshot] = deque()
        self._standing: Standing | None = None
        # Whether it answered with an error when it was told where this broker stands.
        self.is_greeting_refused = False
        # Whether it is greeted: one that closes the connection on that is not, the next time.
        self._greets = True
        self._has_beaten = False
        # Whether it was ever heard over a connection of ours: only then does a refused one mean that it is gone.
        self._was_linked = False
        self.is_proven = False
        self._is_dropped = False
        self._looked_s = self._loop.time()
        # Since when a heartbeat over this connection has no answer, whatever was heard by another way.
        self._unanswered_since_s: float | None = None

    @property
    def is_away(self) -> bool:
        return self._watch.is_away

    @property
    def heard_at_s(self) -> float:
        return self._watch.heard_at_s

    @property
    def is_up(self) -> bool:
        """Whether the partner speaks over this connection."""
        return self.is_proven and not self._watch.is_away

    @property
    def is_asking(self) -> bool:
        """Whether a heartbeat has no answer yet."""
        return bool(self._beats)

    @property
    def is_ours(self) -> bool:
        """Whether the partner has said where it stands."""
        return self._standing is not None

    def write(self, data: bytes) -> None:
        # One that was dropped is there for a moment more.
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(data)

    async def drained(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()

    def beat(self) -> None:
        if self._writer is not None and not self._is_dropped:
            if self.is_silent:
                has_taken_all = self._writer.transport.get_write_buffer_size() == 0
                before = self._beats[-1] if has_taken_all and self._beats else None
                self._beats.clear()
                self._listener.on_silent(before)
            self._beats.append(self._said())
            self._watch.asked(self._loop.time())
            if self._unanswered_since_s is None:
                self._unanswered_since_s = self._loop.time()
            is_told = self._greets if not self._has_beaten else self._standing is not None
            self.write((self._listener.greeting() if is_told else b"") + self._heartbeat)

    def drop(self) -> None:
        """Begin anew with another connection, and not at once: this one led to nothing."""
        if self._writer is not None:
            self._is_dropped = True
            self._writer.transport.abort()

    def heard(self) -> None:
        """Something of the partner reached this broker by another way."""
        if self._watch.heard(self._loop.time()):
            self._listener.on_back()

    # --- tasks: whoever made this runs them -------------------------------------------------------------

    async def dial_on(self) -> None:
        while True:
            dialled_s = self._loop.time()
            try:
                async with asyncio.timeout(self._settings.patience_s):
                    reader, writer = await asyncio.open_connection(*self._address, limit=_LINE_BYTES_MAX)
            except ConnectionRefusedError:
                if self._was_linked and self._watch.refused():
                    self._listener.on_gone("it refuses connections")
            except (OSError, TimeoutError):
                pass  # it cannot be reached now: the misses decide
            else:
                await self._talk(reader, writer)
            # A connection that lasted is dialled again at once, to learn whether the partner is gone.
            pause_s = self._settings.heartbeat_s if self._is_dropped else dialled_s + _REDIAL_S - self._loop.time()
            self._is_dropped = False
            await asyncio.sleep(max(0.0, pause_s))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the connection ends."""
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        self._beats.clear()
        self._unanswered_since_s = None
        self.is_silent = False
        self._standing = None
        self.is_greeting_refused = False
        self._has_beaten = False
        self.beat()
        half = b""
        try:
            while data := await reader.read(_LINE_BYTES_MAX):
                *lines, half = (half + data).split(b"\n")
                if len(half) > _LINE_BYTES_MAX:
                    break
                self._hear([line.removesuffix(b"\r") for line in lines])
        except OSError:
            pass  # broken is ended
        finally:
            self._writer = None
            self.is_proven = False
            self._greets = self._has_beaten or not self._greets
            self._watch.unlinked()
            writer.transport.abort()
            self._listener.on_down()

    def _hear(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._unanswered_since_s = None
        said: list[bytes] = []
        for line in lines:
            if line in (b"HEARTBEAT_ACK", b"PONG"):
                self.is_silent = False
                self._was_linked = self.is_proven = self._has_beaten = True
                # What came before it was said before it.
                if said:
                    self._listener.on_lines(said)
                    said = []
                if self._beats:
                    self._listener.on_beat(self._standing, self._beats.popleft())
            elif line.startswith(ROLE):
                with contextlib.suppress(BadCommand):  # of a version that says it otherwise: foreign
                    self._standing = parse_standing(line)
                if self.is_silent and self._standing is not None:
                    # One of ours, which hung: it has heard what is for others. Begin anew with it.
                    self.drop()
            elif self._has_beaten:
                said.append(line)
            elif line.startswith(b"ERROR|"):
                # Other lines before the first answer are a greeting.
                self.is_greeting_refused = True
            if self._is_dropped:
                return
        if self.is_proven and self._watch.linked(self._loop.time()):
            self._listener.on_back()
        if said:
            self._listener.on_lines(said)

    async def beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_s)
            self.beat()

    async def look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = self._loop.time()
            stood_still = now_s - self._looked_s > 4 * _LOOK_S
            self._looked_s = now_s
            since_s = self._unanswered_since_s
            if self._may_be_silent and not self._was_linked and since_s is not None:
                self.is_silent |= now_s - since_s > self._settings.heartbeat_s
            if self._watch.look(now_s) and not self.is_silent:
                self._listener.on_gone(f"nothing was heard of it for {now_s - self._watch.heard_at_s:.1f} s")
            elif not stood_still:
                if since_s is not None and not self.is_silent and now_s - since_s > self._settings.patience_s:
                    # Also of a partner that is gone anyway: a connection can die before anything was heard on it.
                    self.drop()
                self._listener.on_look(now_s)

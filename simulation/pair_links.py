"""How one of a pair reaches the other: the connection it makes, and the one it takes. As `links` of the cluster.

Each sends through the connection it made itself. The first packet of either side is a hello with the sender's
standing; whoever is not content refuses, and a refused side tries again after a while. A link is lost when either
connection is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from holdfast.consensus.members import ReplicaId
from simulation.pair_wire import FIN, Packet, Stream, Wire

if TYPE_CHECKING:
    from simulation.world import World

KEEPALIVE_MS: Final = 100.0
SILENCE_MS: Final = 5000.0
HELLO_MS: Final = 5000.0
RETRY_MS_MIN: Final = 10.0
RETRY_MS_MAX: Final = 1000.0
REFUSED_RETRY_MS: Final = 500.0
_SHORT_LIFE_MS: Final = 1000.0


class Hello(NamedTuple):
    """`standing` is empty while its node has not begun."""

    node: int
    life: int
    boot: int
    standing: str
    has_formation: bool

    @property
    def replica(self) -> ReplicaId:
        return ReplicaId(f"n{self.node}.{self.life}")


class LinkEvents(Protocol):
    """What a node hears of its links."""

    number: int
    partner: int
    world: World

    def hello(self) -> Hello: ...
    def refusal(self, hello: Hello) -> str | None: ...
    def on_up(self, hello: Hello) -> None: ...
    def on_down(self) -> None: ...
    def on_heard(self) -> None: ...
    def on_dropped(self, groups: set[int]) -> None: ...
    def on_nobody_there(self) -> None: ...
    def on_messages(self, hello: Hello, messages: Packet) -> None: ...
    def postpone(self, action: Callable[..., None], *arguments: object) -> bool: ...


class Links:
    """All connections of one process; `accepts` tells whether the partner's process listens."""

    def __init__(self, node: LinkEvents, wire: Wire, door: Callable[[], Links | None]) -> None:
        self._node = node
        self._world = node.world
        self._wire = wire
        self._door = door
        self._dialed: Stream | None = None
        self._up_hello: Hello | None = None
        self._accepted: tuple[Hello, Stream] | None = None
        self._greeted: dict[Stream, Hello] = {}
        self._strangers: list[Stream] = []
        self._heard_ms = self._dialed_ms = self._looked_ms = node.world.now_ms
        self._try = 0
        self._failures = 0
        self._waits_to_dial = False
        self._is_over = False
        self.is_choked = False
        self.dropped = 0
        self._dropped_groups: set[int] = set()

    # --- beginning and end --------------------------------------------------------------------------

    def start(self) -> None:
        self._dial(self._try)
        self._world.after(KEEPALIVE_MS, self._keep_alive)
        self._world.after(SILENCE_MS / 4, self._look_for_silence)

    def stop(self, *, is_off: bool) -> None:
        """The process is gone; the kernel says so, unless the machine is gone, too."""
        self._is_over = True
        for stream in (self._dialed, self._accepted[1] if self._accepted else None, *self._strangers):
            if stream is not None and is_off:
                stream.vanish(self._node.number)
            elif stream is not None:
                stream.close(self._node.number)

    # --- what a node does with them -----------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self._up_hello is not None

    @property
    def partner_hello(self) -> Hello | None:
        """What the connected partner last said of itself."""
        if self._up_hello is not None:
            return self._up_hello
        return self._accepted[0] if self._accepted is not None else None

    def send(self, group: int, message: object) -> None:
        if self._up_hello is None or self._dialed is None or self.is_choked:
            self.dropped += 1
            if self.is_choked:
                self._dropped_groups.add(group)
            return
        self._dialed.send(self._node.number, ("raft", group, message))

    def unchoke(self) -> None:
        if self.is_choked:
            self.is_choked = False
            groups, self._dropped_groups = self._dropped_groups, set()
            if groups and self._up_hello is not None and not self._is_over:
                self._node.on_dropped(groups)

    def drop(self) -> None:
        """Connect anew, so that both sides say again who they are."""
        if self._up_hello is not None and self._dialed is not None:
            self._dialed.send(self._node.number, ("goodbye",))
            self._dialed_ended(self._dialed)

    # --- the connection it makes ----------------------------------------------------------------------

    def _dial(self, number: int) -> None:
        if self._is_over or number != self._try or self._node.postpone(self._dial, number):
            return
        self._waits_to_dial = False
        self._try += 1
        self._dialed_ms = self._world.now_ms
        self._world.after(HELLO_MS, self._too_slow, self._try)
        self._world.after(self._wire.delay(), self._knock, self._try)

    def _knock(self, number: int) -> None:
        """The kernel's part: it needs both directions, and tries again by itself."""
        if self._is_over or number != self._try or self._dialed is not None:
            return
        if not self._wire.can_shake_hands():
            self._world.after(50.0 + self._world.dice.random() * 300.0, self._knock, number)
            return
        door = self._door()
        if door is None:
            self._world.after(self._wire.delay(), self._nobody_there, number)
            return
        stream = self._dialed = self._wire.connect(self._node.number, self._node.partner)
        stream.open(self._node.number, lambda packet: self._on_dialed(stream, packet))
        door.take(stream)
        self._opened(stream)

    def _opened(self, stream: Stream) -> None:
        if self._dialed is stream and not self._is_over and not self._node.postpone(self._opened, stream):
            stream.send(self._node.number, ("hello", self._node.hello()))

    def _nobody_there(self, number: int) -> None:
        if self._is_over or number != self._try or self._node.postpone(self._nobody_there, number):
            return
        self._dial_later(is_refused=False)
        self._node.on_nobody_there()

    def _too_slow(self, number: int) -> None:
        if self._is_over or number != self._try or self._up_hello is not None or self._waits_to_dial:
            return
        if self._node.postpone(self._too_slow, number):
            return
        if self._dialed is not None:
            self._dialed_ended(self._dialed)
        else:
            self._dial_later(is_refused=False)

    def _on_dialed(self, stream: Stream, packet: Packet) -> None:
        if self._is_over or stream is not self._dialed:
            return
        if packet is FIN or packet[0] == "refusal":
            self._dialed_ended(stream, is_refused=packet is not FIN)
        elif packet[0] == "hello":
            self._greet(stream, packet[1])

    def _greet(self, stream: Stream, hello: Hello) -> None:
        reason = self._node.refusal(hello)
        if self._is_over or stream is not self._dialed:
            return
        if reason is not None:
            stream.send(self._node.number, ("refusal", reason))
            self._dialed_ended(stream, is_refused=True)
            return
        self._up_hello = hello
        stream.send(self._node.number, ("alive",))
        self._node.on_up(hello)

    def _dialed_ended(self, stream: Stream, *, is_refused: bool = False) -> None:
        was_up, self._up_hello, self._dialed = self._up_hello is not None, None, None
        self.is_choked = False
        self._dropped_groups.clear()
        stream.close(self._node.number)
        is_long = was_up and self._world.now_ms - self._dialed_ms >= _SHORT_LIFE_MS
        self._failures = 0 if is_long else self._failures
        self._dial_later(is_refused=is_refused)
        if was_up:
            self._node.on_down()

    def _dial_later(self, *, is_refused: bool) -> None:
        self._failures += 1
        retry_ms = min(RETRY_MS_MIN * 2.0 ** min(self._failures - 1, 16), RETRY_MS_MAX)
        if is_refused:
            retry_ms = REFUSED_RETRY_MS
        self._waits_to_dial = not is_refused
        self._try += 1
        self._world.after(retry_ms * (0.5 + self._world.dice.random() / 2), self._dial, self._try)

    # --- the connection it takes ------------------------------------------------------------------------

    def take(self, stream: Stream) -> None:
        self._strangers = [other for other in self._strangers if other.is_open_at(self._node.number)]
        self._strangers.append(stream)
        stream.open(self._node.number, lambda packet: self._on_accepted(stream, packet))

    def _on_accepted(self, stream: Stream, packet: Packet) -> None:
        if self._is_over:
            return
        if packet is FIN:
            self._accepted_ended(stream, is_telling=True)
            return
        match packet:
            case ("hello", hello):
                self._meet(stream, hello)
                return
            case ("goodbye",):
                self._accepted_ended(stream, is_telling=False)
                return
            case ("refusal", _):
                self._accepted_ended(stream, is_telling=True)
                return
        hello = self._greeted.get(stream)
        if hello is None:
            return
        if self._accepted is None or self._accepted[1] is not stream:
            self._becomes_known(stream, hello)
        self._heard_ms = self._world.now_ms
        self._node.on_heard()
        if packet[0] == "raft":
            self._node.on_messages(hello, packet[1:])

    def _meet(self, stream: Stream, hello: Hello) -> None:
        reason = self._node.refusal(hello)
        if self._is_over:
            return
        if reason is not None:
            stream.send(self._node.number, ("refusal", reason))
            stream.close(self._node.number)
            return
        self._greeted[stream] = hello
        stream.send(self._node.number, ("hello", self._node.hello()))

    def _becomes_known(self, stream: Stream, hello: Hello) -> None:
        before, self._accepted = self._accepted, (hello, stream)
        if before is not None:
            self._greeted.pop(before[1], None)
            before[1].close(self._node.number)
        if self._up_hello is not None and self._up_hello.boot != hello.boot:
            self.drop()
        if self._waits_to_dial:
            self._try += 1
            self._dial(self._try)

    def _accepted_ended(self, stream: Stream, *, is_telling: bool) -> None:
        stream.close(self._node.number)
        self._greeted.pop(stream, None)
        if self._accepted is None or self._accepted[1] is not stream:
            return
        self._accepted = None
        if is_telling:
            self.drop()

    # --- time -----------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        if self._is_over or self._node.postpone(self._keep_alive):
            return
        if self._up_hello is not None and self._dialed is not None:
            self._dialed.send(self._node.number, ("alive",))
        self._world.after(KEEPALIVE_MS, self._keep_alive)

    def _look_for_silence(self) -> None:
        if self._is_over or self._node.postpone(self._look_for_silence):
            return
        now_ms, step_ms = self._world.now_ms, SILENCE_MS / 4
        if now_ms - self._looked_ms < 2 * step_ms:
            if self._accepted is not None and now_ms - self._heard_ms > SILENCE_MS:
                self._accepted_ended(self._accepted[1], is_telling=True)
            if self._dialed is not None and self._dialed.stalled_ms(self._node.number) > SILENCE_MS:
                self._dialed_ended(self._dialed)
        self._looked_ms = now_ms
        self._world.after(step_ms, self._look_for_silence)

"""One broker of a plain pair in virtual time: the rules of `consensus/plain_*`, driven as `backends/plain` drives them.

What takes time in the real one is a generator here, which yields the milliseconds it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.consensus.partner import PairSettings, PartnerWatch
from holdfast.consensus.plain_marks import Marks
from holdfast.consensus.plain_sending import Mode, Sending
from holdfast.consensus.plain_standing import NO_REIGN, Reign, Role, Standing, Verdict, common_end, decide
from simulation.plain_checks import Checks
from simulation.plain_disk import TOPICS, Disk, Stored
from simulation.plain_network import Connection, Network, Packet
from simulation.plain_session import Session
from simulation.plain_tasks import Task, Tasks
from simulation.world import World

BEAT_MS = 100.0
SETTINGS = PairSettings(heartbeat_s=BEAT_MS / 1000, misses=3)
PATIENCE_MS = SETTINGS.patience_s * 1000
_LOOK_MS = 20.0

Answer = Callable[[bool], None]


class PlainNode:
    """`other` is set once both are made."""

    def __init__(self, world: World, network: Network, checks: Checks, name: str, role: str) -> None:
        self.world = world
        self.network = network
        self.checks = checks
        self.name = name
        self.disk = Disk(role, f"{world.dice.getrandbits(16):04x}{name}")
        self.life = 0
        self.is_up = False
        self.other: PlainNode

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.tasks = Tasks(self.world)
        note = self.disk.note
        if note["cut"] is not None:
            self._cut(note["cut"])
        self.phase = "asking" if note["role"] == "primary" else "following"
        self.drained: int = max(note["drained"], self.disk.start)
        self.sending: Sending | None = None
        self.marks = Marks(self.drained)
        self.limit = self.drained
        self.waiting: dict[str, list[Answer]] = {}
        self.is_unsettled = True
        self.watch = PartnerWatch(SETTINGS, self.world.now_ms / 1000)
        self.was_linked = False
        self.link: Connection | None = None
        self.heard: Standing | None = None
        self.unanswered_since_ms: float | None = None
        self.sessions: list[Session] = []
        self.streams: Connection | None = None
        self.change: Task | None = None
        self.asks_until_ms = self.world.now_ms + PATIENCE_MS
        self.misses_since_ms = self.world.now_ms
        self.waits_since_ms: float | None = None
        self.seen_epoch = 0
        self.following: Task | None = None
        self.told: dict[str, int] = {}
        self.untold_from: int | None = None
        self.recovers_to = 0
        if self.phase == "following":
            self._begin_following(self.drained)
        for each in (self._dial_on(), self._beat_on(), self._look_on(), self._sync_on(), self._keep_up()):
            self.tasks.spawn(each)
        self.tasks.spawn(self._drain_on())
        self.tasks.spawn(self._deliver_on())

    def crash(self) -> None:
        self.note("crashes")
        self.is_up = False
        self.life += 1
        self.tasks.end()
        self.disk.crash(self.world.dice)
        for connection in self.network.connections:
            if self in (connection.dialler, connection.listener):
                connection.close()

    def note(self, text: str) -> None:
        if self.world.is_traced:
            self.world.note(f"{self.name}: {text}")

    # --- publishing -----------------------------------------------------------------------------------

    def publish(self, topic: str, message_id: str, answer: Answer) -> None:
        if self.phase != "serving" or self.is_unsettled or self.sending is None:
            answer(False)
            return
        if any(stored.message_id == message_id and not self._is_void(stored) for stored in self.disk.topics[topic]):
            self.checks.acknowledged(self, message_id)
            answer(True)
        elif message_id in self.waiting:
            self.waiting[message_id].append(answer)
        else:
            self.waiting[message_id] = [answer]
            self.disk.append(topic, message_id)

    def _is_void(self, stored: Stored) -> bool:
        """Whether it was given away, and is another's to store and deliver."""
        return any(stored.reign == reign and stored.position >= common for reign, common in self.disk.note["void"])

    def _fail_waiting(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for answers in waiting.values():
            for answer in answers:
                answer(False)

    def _sync_on(self) -> Iterator[float]:
        while True:
            yield 0.5
            end = self.disk.end
            if end > self.disk.synced:
                yield self.world.dice.uniform(0.5, 15.0)
                self.disk.synced = max(self.disk.synced, min(end, self.disk.end))
            if self.sending is not None:
                self.sending.stored_to(self.disk.synced)
                self._advance()
            for session in self.sessions:
                session.flush()

    def _advance(self) -> None:
        sending = self.sending
        if sending is None:
            return
        if not sending.has_open:
            self.waits_since_ms = None
        elif self.waits_since_ms is None:
            self.waits_since_ms = self.world.now_ms
        self.limit = max(self.limit, sending.committed)
        while self.streams is not None and (due := sending.next_to_send()) is not None:
            for entry in self.disk.read(*due):
                self.streams.say(("replicate", entry.message_id, entry.position + 1, entry.topic))
            sending.sent_to(due[1])

    def _drain_on(self) -> Iterator[float]:
        """Of a primary: what is committed goes into the topics."""
        while True:
            yield 0.7
            sending = self.sending
            if sending is None or self.drained >= self.limit:
                self._look_whether_settled()
                continue
            reign = self.disk.reign
            end = min(self.limit, self.drained + 8)
            entries = self.disk.read(self.drained, end)
            skips = Marks(self.disk.note["drained"], self.disk.note["apart"]).has
            for entry in entries:
                stored = self.disk.topics[entry.topic]
                last = (stored[-1].reign, stored[-1].position) if stored else (NO_REIGN, -1)
                if not skips(entry.position) and (reign, entry.position) > last:
                    stored.append(Stored(reign, entry.position, entry.message_id))
                    self.checks.put(self, entry.topic, stored[-1])
            yield self.world.dice.uniform(0.3, 8.0)
            if self.sending is not sending:
                continue
            self.disk.sync_topics()
            self.drained = max(self.drained, end)
            for entry in entries:
                for answer in self.waiting.pop(entry.message_id, ()):
                    self.checks.acknowledged(self, entry.message_id)
                    answer(True)
            self._look_whether_settled()

    def _look_whether_settled(self) -> None:
        if self.drained >= self.recovers_to and self.untold_from is not None and self.streams is not None:
            self._tell_from(self.untold_from)
            self.untold_from = None
        if self.phase == "serving" and self.drained >= self.disk.end:
            self.is_unsettled = False

    # --- delivering -----------------------------------------------------------------------------------

    def _deliver_on(self) -> Iterator[float]:
        while True:
            yield self.world.dice.uniform(1.0, 4.0)
            if self.phase != "serving":
                continue
            for topic in TOPICS:
                at = self.disk.cursors[topic]
                if at >= self.disk.topics_synced[topic] or self.checks.stalls(topic):
                    continue
                self.checks.delivered(self, topic, self.disk.topics[topic][at])
                self.disk.cursors[topic] = at + 1
                self._tell_delivered(topic)
            if self.world.chance(0.3):
                self.disk.cursors_synced = dict(self.disk.cursors)

    def _first_undelivered(self, topic: str) -> int:
        at, stored = self.disk.cursors[topic], self.disk.topics[topic]
        own = [each.position for each in stored[at:] if each.reign == self.disk.reign]
        return min([*own[:1], self.drained])

    def _tell_delivered(self, topic: str) -> None:
        """What of a topic was not told on this connection, and was sent."""
        if self.untold_from is not None or self.streams is None or self.sending is None or self.sending.sent is None:
            return
        stored = self.disk.topics[topic]
        while self.told.get(topic, 0) < self.disk.cursors[topic]:
            each = stored[self.told.get(topic, 0)]
            if each.reign == self.disk.reign:
                if each.position >= self.sending.sent:
                    return
                self.streams.say(("mark", each.message_id, each.position + 1))
            self.told[topic] = self.told.get(topic, 0) + 1

    def _tell_from(self, mark: int) -> None:
        """A new connection: whatever the backup may not have heard of."""
        assert self.streams is not None and self.sending is not None and self.sending.sent is not None
        firsts = {topic: self._first_undelivered(topic) for topic in TOPICS}
        for position in range(mark, self.disk.start):
            self.streams.say(("mark", "", position + 1))
        for entry in self.disk.read(mark, min(self.drained, self.sending.sent)):
            if entry.position < firsts[entry.topic]:
                self.streams.say(("mark", entry.message_id, entry.position + 1))
        for topic in TOPICS:
            behind = [
                at
                for at, each in enumerate(self.disk.topics[topic][: self.disk.cursors[topic]])
                if each.reign == self.disk.reign and each.position >= self.sending.sent
            ]
            self.told[topic] = behind[0] if behind else self.disk.cursors[topic]

    # --- the partner ----------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        note, disk = self.disk.note, self.disk
        role = Role.BACKUP if note["role"] == "backup" else Role.ASKING if self.phase == "asking" else Role.PRIMARY
        mark = self.marks.mark if role is Role.BACKUP else 0
        return Standing(role, note["token"], disk.reign, note["previous"], note["base"], disk.start, disk.synced, mark)

    def _dial_on(self) -> Iterator[float]:
        while True:
            if self.link is None:
                try:
                    self.link = self.network.dial(self, self.other)
                except ConnectionRefusedError:
                    if self.was_linked and self.watch.refused():
                        self._gone("refused")
                if self.link is not None:
                    self.heard = None
                    self.unanswered_since_ms = None
                    self._beat()
            yield self.world.dice.uniform(5.0, 15.0)

    def _beat(self) -> None:
        if self.link is not None:
            self.link.say(("role", self.standing))
            self.link.say(("beat",))
            self.watch.asked(self.world.now_ms / 1000)
            if self.unanswered_since_ms is None:
                self.unanswered_since_ms = self.world.now_ms

    def _beat_on(self) -> Iterator[float]:
        while True:
            yield BEAT_MS
            self._beat()

    def accept(self, connection: Connection) -> Session:
        session = Session(self, connection)
        self.sessions = [each for each in self.sessions if each.connection.is_open]
        self.sessions.append(session)
        return session

    def lost(self, connection: Connection) -> None:
        if self.is_up and self.link is connection:
            self.link = None
            self.unanswered_since_ms = None
            self.watch.unlinked()
            self._end_stream()
            if self.sending is not None:
                self.sending.closed()

    def _drop_link(self) -> None:
        self._end_stream()
        if self.sending is not None:
            self.sending.closed()
        if self.link is not None:
            self.link.is_open = False
            self.link = None
            self.unanswered_since_ms = None
            self.watch.unlinked()

    def _end_stream(self) -> None:
        if self.streams is not None:
            self.streams = None
            self.misses_since_ms = self.world.now_ms
            self.waits_since_ms = None

    def hear(self, connection: Connection, packet: Packet) -> None:
        if not self.is_up or self.link is not connection:
            return
        self.unanswered_since_ms = None
        if packet[0] == "role":
            self.heard = packet[1]
        elif packet[0] == "beat":
            self.was_linked = True
            self.watch.linked(self.world.now_ms / 1000)
            self.disk.write(has_met=True)
            if self.heard is not None:
                self._on_standing(self.heard)
        elif packet[0] == "replicated" and self.sending is not None and self.streams is connection:
            self.waits_since_ms = None
            self.sending.confirm(packet[1])
            self._advance()
        elif packet[0] == "error" and self.streams is connection:
            self._refused()

    def _refused(self) -> None:
        """The backup answered with an error: nothing more comes of this connection."""
        self._drop_link()
        if self.sending is not None:
            self.sending.gone()
            self._advance()

    def _on_standing(self, other: Standing) -> None:
        if self.change is not None and not self.change.is_done:
            return
        self.seen_epoch = max(self.seen_epoch, other.reign.epoch)
        verdict = decide(self.standing, other)
        if verdict is Verdict.GIVE_WAY:
            self.change = self.tasks.spawn(self._give_way())
        elif self.phase == "asking" and verdict is not Verdict.WAIT:
            self.change = self.tasks.spawn(self._serve())
        elif verdict is Verdict.SERVE and self.sending is not None:
            self.sending.gone()
            self._advance()
        elif verdict is Verdict.SEND and self.phase == "serving":
            self._stream(other)
        elif verdict is Verdict.TAKE_ON or (verdict is Verdict.FOLLOW and self.disk.end < other.start):
            self.change = self.tasks.spawn(self._take_on(other))
        elif verdict is Verdict.TAKE_OVER and self.phase == "following":
            self._take_over("both are backups")

    def _stream(self, other: Standing) -> None:
        if self.streams is not None or self.sending is None or self.link is None:
            return
        self.note(f"sends from {other.end} of {self.disk.start}..{self.disk.end}, from mark {other.mark}")
        self.sending.opened(max(other.end, self.disk.start), confirms=True)
        self.streams = self.link
        self.untold_from = other.mark
        self._advance()
        self._look_whether_settled()

    def _gone(self, why: str) -> None:
        self.note(f"the other is gone: {why}")
        self._drop_link()
        if self.sending is not None:
            self.sending.gone()
            self._advance()
        elif self.phase in ("following", "giving"):
            self._take_over(why)

    def _look_on(self) -> Iterator[float]:
        while True:
            yield _LOOK_MS
            now_ms = self.world.now_ms
            if self.watch.look(now_ms / 1000):
                self._gone("silent")
            elif (since_ms := self.unanswered_since_ms) is not None and now_ms - since_ms > PATIENCE_MS:
                self._drop_link()
            is_busy = self.change is not None and not self.change.is_done
            if self.phase == "asking" and now_ms > self.asks_until_ms and not is_busy:
                self.change = self.tasks.spawn(self._serve())
            elif self.phase == "following" and self.watch.is_away and not is_busy:
                self._take_over("away")
            if self.sending is None:
                continue
            if self.streams is None:
                if self.sending.mode is not Mode.ALONE and now_ms - self.misses_since_ms > PATIENCE_MS:
                    self.sending.gone()
                    self._advance()
            elif self.waits_since_ms is not None and now_ms - self.waits_since_ms > PATIENCE_MS:
                self._refused()

    # --- changing roles -------------------------------------------------------------------------------

    def _settle_topics(self) -> None:
        """What is in a topic counts as delivered, once it is there for good."""
        self.disk.sync_topics()
        self.disk.cursors = {topic: len(stored) for topic, stored in self.disk.topics.items()}
        self.disk.cursors_synced = dict(self.disk.cursors)

    def _serve(self) -> Iterator[float]:
        if self.disk.reign == NO_REIGN:
            self._settle_topics()
            self.disk.write(reign=Reign(1, self.disk.note["token"]), base=self.disk.end, kept=self.disk.end)
        yield from self._settled()
        self._begin_to_serve(self.drained)
        if self.link is None:
            assert self.sending is not None
            self.sending.gone()
        self._advance()
        self._beat()

    def _settled(self) -> Iterator[float]:
        while self.disk.synced < self.disk.end:
            yield 1.0

    def _begin_to_serve(self, committed: int) -> None:
        self.sending = Sending(
            stored=self.disk.synced,
            committed=max(committed, self.disk.start),
            confirmed=self.disk.note["kept"],
            requires_backup=False,
        )
        self.limit = self.drained
        self.is_unsettled = True
        # Before everything is in its topic again, nobody can say which entries are delivered.
        self.recovers_to = self.disk.end
        self.misses_since_ms = self.world.now_ms
        self.phase = "serving"
        self.note(f"serves in {self.disk.reign}")

    def _give_way(self) -> Iterator[float]:
        self.note("gives way")
        self.checks.world.counts["gave way"] += 1
        self.phase = "following"
        kept = max(self.disk.note["kept"], self.disk.start)
        self.disk.write(role="backup", drained=kept, apart=[])
        self._end_stream()
        self.sending = None
        self._fail_waiting()
        yield from self._settled()
        self._begin_following(kept)
        self._drop_link()

    def _begin_following(self, mark: int) -> None:
        self._settle_topics()
        self.marks = Marks(max(mark, self.disk.start))
        self.drained = self.limit = self.marks.mark
        self.following = self.tasks.spawn(self._follow_on())

    def _follow_on(self) -> Iterator[float]:
        """Of a backup: what is delivered becomes history."""
        while True:
            yield 2.0
            end = min(self.marks.mark, self.disk.synced)
            if self.drained < end:
                yield self.world.dice.uniform(0.3, 5.0)
                self._put_delivered(self.drained, end)
                self.drained = end

    def _put_delivered(self, first: int, behind: int) -> None:
        for entry in self.disk.read(first, behind):
            stored = self.disk.topics[entry.topic]
            last = (stored[-1].reign, stored[-1].position) if stored else (NO_REIGN, -1)
            if (self.disk.reign, entry.position) > last:
                stored.append(Stored(self.disk.reign, entry.position, entry.message_id))
        self._settle_topics()

    def _end_following(self) -> None:
        if self.following is not None:
            self.following.is_cancelled = True
            self.following = None

    def _take_on(self, winner: Standing) -> Iterator[float]:
        self.phase = "giving"
        yield from self._settled()
        common = common_end(self.standing, winner)
        given_to, given = self.disk.note["given"]
        first = max(common, given if given_to == winner.reign else 0)
        self.note(f"gives {first}..{self.disk.end} to {winner.reign}, common {common}")
        yield from self._give(winner.reign, first)
        self._end_following()
        is_joined = self.disk.start <= common and winner.start <= common
        cut = common if is_joined else winner.start
        mark = min(self.drained, cut) if is_joined else cut
        self.disk.write(
            reign=winner.reign,
            previous=winner.previous,
            base=winner.base,
            cut=cut,
            drained=mark,
            given=(NO_REIGN, 0),
            void=[*self.disk.note["void"], (self.disk.reign, common)],
        )
        self.note(f"follows {winner.reign} from {cut} on, mark {mark}")
        if self.world.chance(0.1):
            yield self.world.dice.uniform(0.0, 3.0)
        self._cut(cut)
        self._begin_following(mark)
        self.phase = "following"
        self._beat()

    def _cut(self, position: int) -> None:
        self.disk.cut(position)
        self.disk.write(cut=None)

    def _give(self, to: Reign, first: int) -> Iterator[float]:
        for entry in self.disk.read(first, self.disk.end):
            if self.marks.has(entry.position):
                continue
            answers: list[bool] = []
            while True not in answers:
                if self.other.is_up and not self.network.is_cut:
                    self.other.publish(entry.topic, entry.message_id, answers.append)
                yield self.world.dice.uniform(5.0, 40.0)
            self.world.counts["given"] += 1
            if self.world.chance(0.3):
                self.disk.write(given=(to, entry.position + 1))

    def _take_over(self, why: str) -> None:
        if not self.disk.note["has_met"] or self.phase == "taking over":
            return
        if self.change is not None and not self.change.is_done:
            if self.phase != "giving":
                return
            self.change.is_cancelled = True
        self.phase = "taking over"
        self.change = self.tasks.spawn(self._take_over_now(why))

    def _take_over_now(self, why: str) -> Iterator[float]:
        self._end_following()
        if self.disk.note["cut"] is not None:
            self._cut(self.disk.note["cut"])
            self._begin_following(self.disk.note["drained"])
            self._end_following()
        yield from self._settled()
        yield self.world.dice.uniform(0.0, 5.0)
        end = min(self.marks.mark, self.disk.end)
        self._put_delivered(self.drained, end)
        self.drained = max(self.drained, end)
        for first, behind in self.marks.apart:
            self._put_delivered(first, behind)
        self._settle_topics()
        note = self.disk.note
        self.disk.write(
            role="primary",
            previous=self.disk.reign,
            reign=Reign(max(self.disk.reign.epoch, self.seen_epoch) + 1, note["token"]),
            base=self.disk.end,
            drained=self.drained,
            apart=self.marks.apart,
            kept=self.drained,
            given=(NO_REIGN, 0),
        )
        self.note(f"takes over ({why})")
        self.world.counts["took over"] += 1
        self._begin_to_serve(self.disk.end)
        assert self.sending is not None
        if self.link is None:
            self.sending.gone()
        self._advance()
        self._drop_link()

    def _keep_up(self) -> Iterator[float]:
        while True:
            yield self.world.dice.uniform(20.0, 60.0)
            if self.sending is not None and self.phase == "serving":
                below = min(map(self._first_undelivered, TOPICS))
                self.disk.cursors_synced = dict(self.disk.cursors)
                kept: int = max(self.disk.note["kept"], min(below, self.sending.reached, self.drained))
                apart = self.disk.note["apart"] if self.drained < self.disk.note["base"] else []
                self.disk.write(drained=self.drained, kept=kept, apart=apart)
                self.disk.prune(kept)
            elif self.phase == "following" and self.following is not None:
                self.disk.write(drained=self.drained)
                self.disk.prune(self.drained)

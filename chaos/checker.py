"""Holds what everybody was told against what the nodes serve. Pure: a history in, violations out.

Every check is a function of its own and says which promise it is about; `CHECKS` lists them. Nothing here knows how
the broker works, and nothing is forgiven: an unknown outcome may be there or not, everything else is either so or
a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from chaos.history import History, Place, Record, Sent, Served

# Of each kind so many are kept with their details; all are counted.
EXAMPLES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    detail: str


@dataclass(slots=True)
class Verdict:
    """What was found. `counts` has every check, those that found nothing too."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Violation] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not any(self.counts.values())

    def add(self, kind: str, details: Iterable[str]) -> None:
        self.counts[kind] += 0
        for detail in details:
            self.counts[kind] += 1
            if self.counts[kind] <= EXAMPLES_MAX:
                self.examples.append(Violation(kind, detail))

    def merge(self, other: Verdict) -> None:
        for kind, count in other.counts.items():
            self.counts[kind] += count
        self.examples += other.examples

    def as_json(self) -> dict[str, object]:
        return {
            "clean": self.is_clean,
            "violations": dict(sorted(self.counts.items())),
            "examples": [{"kind": each.kind, "detail": each.detail} for each in self.examples],
        }


def check(history: History) -> Verdict:
    """Everything that must hold, whatever was injected."""
    verdict = Verdict()
    for kind, function in CHECKS.items():
        verdict.add(kind, function(history))
    return verdict


# --- what is stored ---------------------------------------------------------------------------------------------------


def lost(history: History) -> Iterator[str]:
    """Every acknowledged message is served by every node. What a node does not serve at all is a difference."""
    places = set(history.by_place())
    for node in history.nodes():
        stored = {(one.place.topic, record.value) for one in _of(history, node) for record in one.records}
        silent = {place.topic for place in places - {one.place for one in _of(history, node)}}
        for sent in _acknowledged(history):
            if sent.topic not in silent and (sent.topic, sent.value) not in stored:
                yield f"{sent.topic}: {sent.value} was acknowledged ({_where(sent)}), {node} does not have it"


def misplaced(history: History) -> Iterator[str]:
    """An acknowledged message stands at the offset that its publisher was told."""
    at = _by_offset(history)
    for sent in _acknowledged(history):
        if sent.place is None or sent.offset is None:
            continue
        for node, records in at.get(sent.place, {}).items():
            found = records.get(sent.offset)
            if found is not None and found.value != sent.value:
                yield f"{sent.place}: {sent.value} was acknowledged at {sent.offset}, {node} has {found.value} there"


def unsent(history: History) -> Iterator[str]:
    """Nothing is served, and nothing was shown, that nobody sent there."""
    known = {(sent.topic, sent.value) for sent in history.sent}
    for one in history.served:
        for record in one.records:
            if (one.place.topic, record.value) not in known:
                yield f"{one.place}: {one.node} has {record.value} at {record.offset}, which nobody sent"
    for seen in history.seen:
        if (seen.place.topic, seen.value) not in known:
            yield f"{seen.place}: {seen.reader} got {seen.value} at {seen.offset}, which nobody sent"


def twice(history: History) -> Iterator[str]:
    """No message is stored twice: with an id it may be sent often, without one it was sent once."""
    for node in history.nodes():
        places: dict[tuple[str, str], list[str]] = {}
        for one in _of(history, node):
            for record in one.records:
                places.setdefault((one.place.topic, record.value), []).append(f"{one.place}@{record.offset}")
        for (_, value), found in places.items():
            if len(found) > 1:
                yield f"{value} is stored {len(found)} times on {node}: {', '.join(found)}"


def refused_yet_stored(history: History) -> Iterator[str]:
    """A broker that said that nothing was stored told the truth."""
    refused = {(sent.topic, sent.value): sent for sent in history.sent if sent.fate == "refused"}
    for one in history.served:
        for record in one.records:
            sent = refused.get((one.place.topic, record.value))
            if sent is not None:
                yield f"{one.place}: {sent.value} was refused ({sent.why}), {one.node} has it at {record.offset}"


def gaps(history: History) -> Iterator[str]:
    """Offsets begin at 0 and have no gap."""
    for one in history.served:
        for expected, record in enumerate(one.records):
            if record.offset != expected:
                yield f"{one.place}: {one.node} has offset {record.offset} where {expected} is due"
                break


def divergence(history: History) -> Iterator[str]:
    """All nodes serve the same bytes of every partition."""
    nodes = history.nodes()
    for place, copies in history.by_place().items():
        if missing := set(nodes) - {one.node for one in copies}:
            yield f"{place}: {', '.join(sorted(missing))} does not serve it"
        first = copies[0]
        for other in copies[1:]:
            if other.digest != first.digest:
                yield f"{place}: {first.node} and {other.node} differ {_first_difference(first, other)}"


def order(history: History) -> Iterator[str]:
    """A message that was sent after another was acknowledged stands behind it in their partition."""
    by_place: dict[Place, list[Sent]] = {}
    for sent in _acknowledged(history):
        if sent.place is not None and sent.offset is not None:
            by_place.setdefault(sent.place, []).append(sent)
    for place, all_sent in by_place.items():
        answered = sorted(all_sent, key=lambda sent: sent.answered_at)
        next_answered, last = 0, None
        for sent in sorted(all_sent, key=lambda sent: sent.sent_at):
            while next_answered < len(answered) and answered[next_answered].answered_at < sent.sent_at:
                if last is None or _offset(answered[next_answered]) > _offset(last):
                    last = answered[next_answered]
                next_answered += 1
            if last is not None and _offset(last) >= _offset(sent):
                yield f"{place}: {sent.value} at {sent.offset} was sent after {last.value} at {last.offset} was stored"


def producer_order(history: History) -> Iterator[str]:
    """The acknowledged messages of one producer stand in the order in which it sent them."""
    sequences = {(sent.topic, sent.value): (sent.producer, sent.sequence) for sent in _acknowledged(history)}
    for one in history.served:
        last: dict[str, int] = {}
        for record in one.records:
            known = sequences.get((one.place.topic, record.value))
            if known is None:
                continue
            producer, sequence = known
            if sequence < last.get(producer, -1):
                yield f"{one.place}: {one.node} has {record.value} behind {producer}/{last[producer]}"
            last[producer] = max(sequence, last.get(producer, -1))


# --- what was shown on the way ----------------------------------------------------------------------------------------


def vanished(history: History) -> Iterator[str]:
    """What one reader saw at an offset is what every node serves there at the end."""
    at = _by_offset(history)
    for seen in history.seen:
        for node, records in at.get(seen.place, {}).items():
            found = records.get(seen.offset)
            if found is None:
                yield f"{seen.place}: {seen.reader} saw {seen.value} at {seen.offset} on {seen.node}, {node} has none"
            elif found.value != seen.value:
                yield (
                    f"{seen.place}: {seen.reader} saw {seen.value} at {seen.offset} on {seen.node}, "
                    f"{node} has {found.value}"
                )


def reader_order(history: History) -> Iterator[str]:
    """A subscriber gets every message once, in the order of offsets, for as long as its session lasts."""
    last: dict[tuple[str, int, Place], int] = {}
    for seen in history.seen:
        session = (seen.reader, seen.session, seen.place)
        expected = last.get(session, seen.offset - 1) + 1
        if seen.offset != expected:
            yield f"{seen.place}: {seen.reader} got offset {seen.offset} where {expected} is due"
        last[session] = seen.offset


def stale_reads(history: History) -> Iterator[str]:
    """A read to the end shows all that was acknowledged, or shown to anybody, before it began."""
    by_place: dict[Place, list[tuple[float, int, str]]] = {}
    for sent in _acknowledged(history):
        if sent.place is not None and sent.offset is not None:
            said = f"{sent.value} was acknowledged at {sent.answered_at:.3f} s"
            by_place.setdefault(sent.place, []).append((sent.answered_at, sent.offset + 1, said))
    for tail in history.tails:
        said = f"{tail.reader} read it on {tail.node} at {tail.ended:.3f} s"
        by_place.setdefault(tail.place, []).append((tail.ended, tail.end, said))
    for seen in history.seen:
        said = f"{seen.reader} saw it on {seen.node} at {seen.at:.3f} s"
        by_place.setdefault(seen.place, []).append((seen.at, seen.offset + 1, said))
    for known in by_place.values():
        known.sort()
    positions: dict[Place, tuple[int, int, str]] = {}
    for tail in sorted(history.tails, key=lambda one: one.began):
        next_known, end, why = positions.get(tail.place, (0, 0, ""))
        known = by_place[tail.place]
        while next_known < len(known) and known[next_known][0] < tail.began:
            if known[next_known][1] > end:
                _, end, why = known[next_known]
            next_known += 1
        positions[tail.place] = (next_known, end, why)
        if tail.end < end:
            yield (
                f"{tail.place}: {tail.reader} read on {tail.node} up to {tail.end} from {tail.began:.3f} to "
                f"{tail.ended:.3f} s, but before that read began it reached {end}: {why}"
            )


def cursors_back(history: History) -> Iterator[str]:
    """A cursor is never found before a place to which it was moved earlier."""
    moved: dict[tuple[str, Place], list[tuple[float, int]]] = {}
    for event in history.cursors:
        if event.kind == "moved":
            moved.setdefault((event.name, event.place), []).append((event.ended, event.offset))
    for event in history.cursors:
        before = [at for ended, at in moved.get((event.name, event.place), ()) if ended < event.began]
        if event.kind == "found" and before and event.offset < max(before):
            yield f"{event.place}: cursor {event.name} is at {event.offset} on {event.node}, it was at {max(before)}"


def stalled(history: History) -> Iterator[str]:
    """After the faults, and with a majority during them, everything goes on without a hand."""
    yield from history.stalls


CHECKS: Final[dict[str, Callable[[History], Iterator[str]]]] = {
    "acknowledged and lost": lost,
    "not where it was acknowledged": misplaced,
    "never sent": unsent,
    "stored twice": twice,
    "refused, yet stored": refused_yet_stored,
    "offsets with gaps": gaps,
    "nodes differ": divergence,
    "out of order in time": order,
    "out of order of a producer": producer_order,
    "seen and gone": vanished,
    "reader out of order": reader_order,
    "stale read": stale_reads,
    "cursor went back": cursors_back,
    "did not go on": stalled,
}


def _acknowledged(history: History) -> Iterator[Sent]:
    return (sent for sent in history.sent if sent.fate == "acknowledged")


def _of(history: History, node: str) -> Iterator[Served]:
    return (one for one in history.served if one.node == node)


def _by_offset(history: History) -> dict[Place, dict[str, dict[int, Record]]]:
    found: dict[Place, dict[str, dict[int, Record]]] = {}
    for one in history.served:
        found.setdefault(one.place, {})[one.node] = {record.offset: record for record in one.records}
    return found


def _offset(sent: Sent) -> int:
    assert sent.offset is not None
    return sent.offset


def _where(sent: Sent) -> str:
    return f"{sent.place} at {sent.offset}" if sent.place is not None else "through the text protocol"


def _first_difference(one: Served, other: Served) -> str:
    for mine, theirs in zip(one.records, other.records, strict=False):
        if mine != theirs:
            return f"at offset {mine.offset}: {mine.value} and {theirs.value}"
    if len(one.records) != len(other.records):
        return f"in length: {len(one.records)} and {len(other.records)} messages"
    return "in their bytes, though the messages are the same"

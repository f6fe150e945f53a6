"""Compares what clients were told with what the nodes serve. Pure: a history goes in, violations come out.

Each check is a function that guards one promise; `CHECKS` lists them. The checks know nothing of the broker's code. A
message with an unknown outcome may be stored or not; every other difference is a violation. Several million deliveries
are judged within seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testkit.history import ACKNOWLEDGED, NOWHERE, REFUSED, SEQUENCES_MAX, Copy, Deliveries, History

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]
Marks = NDArray[np.bool_]
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


class Sent(NamedTuple):
    """All producers in one table; `first_rows` says where each of them begins."""

    first_rows: Numbers
    counts: Numbers
    producer: Numbers
    sequence: Numbers
    topic: Numbers
    fate: Numbers
    place: Numbers
    offset: Numbers
    sent_at: Times
    answered_at: Times

    @property
    def is_acknowledged(self) -> Marks:
        return np.equal(self.fate, ACKNOWLEDGED)

    @property
    def has_place(self) -> Marks:
        is_known: Marks = self.place != NOWHERE
        return np.logical_and(self.is_acknowledged, is_known)

    @property
    def message(self) -> Numbers:
        return self.producer * SEQUENCES_MAX + self.sequence


class Case:
    """A history as the checks look at it."""

    def __init__(self, history: History) -> None:
        self.history = history
        names = sorted({*(each.topic for each in history.producers), *(place.topic for place in history.places)})
        self.topics = {topic: number for number, topic in enumerate(names)}
        self.topic_of_place = _numbers([self.topics[place.topic] for place in history.places])
        self.sent = self._table()
        self._rows: dict[int, Numbers] = {}
        self._offsets: dict[int, Numbers] = {}

    def _table(self) -> Sent:
        producers = self.history.producers
        counts = _numbers([len(each.sent_at) for each in producers])
        topics = _numbers([self.topics[each.topic] for each in producers])
        return Sent(
            first_rows=np.cumsum(counts) - counts,
            counts=counts,
            producer=np.repeat(np.arange(len(producers)), counts),
            sequence=_joined([np.arange(count) for count in counts]),
            topic=np.repeat(topics, counts),
            fate=_joined([np.asarray(each.fate, np.int64) for each in producers]),
            place=_joined([np.asarray(each.place, np.int64) for each in producers]),
            offset=_joined([np.asarray(each.offset, np.int64) for each in producers]),
            sent_at=_joined_times([np.asarray(each.sent_at) for each in producers]),
            answered_at=_joined_times([np.asarray(each.answered_at) for each in producers]),
        )

    def rows(self, messages: Numbers, places: Numbers) -> Numbers:
        """The rows of messages, -1 for those that nobody sent to the topic of the place where they are."""
        if not len(self.sent.counts):
            return np.full(len(messages), -1)
        producers = np.where(messages < 0, 0, messages // SEQUENCES_MAX)
        sequences = messages % SEQUENCES_MAX
        known = (messages >= 0) & (sequences < self.sent.counts[producers])
        rows = np.where(known, self.sent.first_rows[producers] + sequences, 0)
        known &= self.sent.topic[rows] == self.topic_of_place[places] if len(self.sent.topic) else False
        return np.where(known, rows, -1)

    def rows_of(self, copy: Copy) -> Numbers:
        """Of the messages of one copy; copies that are the same have the same."""
        found = self._rows.get(id(copy.content))
        if found is None:
            messages = _numbers(copy.content.messages)
            found = self._rows[id(copy.content)] = self.rows(messages, np.full(len(messages), copy.place))
        return found

    def offsets_of(self, got: Deliveries) -> Numbers:
        """Where the messages stand that a subscriber got; for one that was not told, where a node serves them."""
        found = self._offsets.get(id(got))
        if found is None:
            found, places, messages = _numbers(got.offset).copy(), _numbers(got.place), _numbers(got.message)
            for place in np.unique(places[found == NOWHERE]):
                own = np.flatnonzero((found == NOWHERE) & (places == place))
                for copy in self.history.copies_of(int(place))[:1]:
                    known, offsets = _numbers(copy.content.messages), _numbers(copy.content.offsets)
                    if len(known):
                        by_message = np.argsort(known, kind="stable")
                        at = by_message[np.minimum(np.searchsorted(known[by_message], messages[own]), len(known) - 1)]
                        found[own] = np.where(known[at] == messages[own], offsets[at], NOWHERE)
            self._offsets[id(got)] = found
        return found

    def nodes(self) -> list[str]:
        return sorted({*self.history.members, *(one.node for one in self.history.copies)})

    def of_node(self, node: str) -> list[Copy]:
        return [one for one in self.history.copies if one.node == node]

    def name(self, row: int) -> str:
        return self.history.named(int(self.sent.producer[row]) * SEQUENCES_MAX + int(self.sent.sequence[row]))

    def at(self, place: int) -> str:
        return str(self.history.places[place])


def check(history: History, kinds: Iterable[str] | None = None) -> Verdict:
    """Everything that must hold, whatever was injected; or of that only these kinds, where less was promised."""
    case, verdict = Case(history), Verdict()
    for kind in CHECKS if kinds is None else kinds:
        verdict.add(kind, CHECKS[kind](case))
    return verdict


# --- what is stored ---------------------------------------------------------------------------------------------------


def lost(case: Case) -> Iterator[str]:
    """Every acknowledged message is served by every node. What a node does not serve at all is a difference."""
    places = set(case.history.served_places())
    for node in case.nodes():
        copies = case.of_node(node)
        silent = {int(case.topic_of_place[place]) for place in places - {one.place for one in copies}}
        missing = case.sent.is_acknowledged & ~np.isin(case.sent.topic, list(silent))
        for copy in copies:
            rows = case.rows_of(copy)
            missing[rows[rows >= 0]] = False
        for row in map(int, np.flatnonzero(missing)):
            yield f"{case.name(row)} was acknowledged ({_where(case, row)}), {node} does not have it"


def misplaced(case: Case) -> Iterator[str]:
    """An acknowledged message stands at the offset that its publisher was told."""
    for place in case.history.served_places():
        rows = np.flatnonzero(case.sent.has_place & (case.sent.place == place))
        for copy in case.history.copies_of(place):
            found, is_there = _look_up(copy, case.sent.offset[rows])
            for row, other in _where_both(rows, found, is_there & (found != case.sent.message[rows])):
                yield (
                    f"{case.at(place)}: {case.name(row)} was acknowledged at {case.sent.offset[row]}, {copy.node} has "
                    f"{case.history.named(other)} there"
                )
            if not is_there.all():
                # A message that the node has nowhere is lost, which is another check.
                everywhere = np.concatenate([case.rows_of(one) for one in case.of_node(copy.node)])
                for row in map(int, np.intersect1d(rows[~is_there], everywhere)):
                    yield (
                        f"{case.at(place)}: {case.name(row)} was acknowledged at {case.sent.offset[row]}, {copy.node} "
                        "has it elsewhere"
                    )


def unsent(case: Case) -> Iterator[str]:
    """Nothing is served, and nothing was shown, that nobody sent there."""
    for copy in case.history.copies:
        if case.history.places[copy.place].topic in case.history.foreign_topics:
            continue
        for index in np.flatnonzero(case.rows_of(copy) < 0):
            name, offset = case.history.named(copy.content.messages[index]), copy.content.offsets[index]
            yield f"{case.at(copy.place)}: {copy.node} has {name} at {offset}, which nobody sent"
    for got in case.history.deliveries:
        for index in np.flatnonzero(case.rows(_numbers(got.message), _numbers(got.place)) < 0):
            name = case.history.named(got.message[index])
            yield f"{case.at(got.place[index])}: {got.reader} got {name} at {got.offset[index]}, which nobody sent"


def twice(case: Case) -> Iterator[str]:
    """No message is stored twice: with an id it may be sent often, without one it was sent once."""
    for node in case.nodes():
        copies = case.of_node(node)
        times = np.zeros(len(case.sent.fate), np.int64)
        for copy in copies:
            rows = case.rows_of(copy)
            times += np.bincount(rows[rows >= 0], minlength=len(times))
        for row in map(int, np.flatnonzero(times > 1)):
            found = [
                f"{case.at(copy.place)}@{copy.content.offsets[index]}"
                for copy in copies
                for index in np.flatnonzero(case.rows_of(copy) == row)
            ]
            yield f"{case.name(row)} is stored {len(found)} times on {node}: {', '.join(found)}"


def refused_yet_stored(case: Case) -> Iterator[str]:
    """A broker that said that nothing was stored told the truth."""
    for copy in case.history.copies:
        rows = case.rows_of(copy)
        known = np.flatnonzero(rows >= 0)
        for index in known[case.sent.fate[rows[known]] == REFUSED]:
            offset = copy.content.offsets[index]
            yield f"{case.at(copy.place)}: {case.name(rows[index])} was refused, {copy.node} has it at {offset}"


def gaps(case: Case) -> Iterator[str]:
    """Offsets begin at 0 and have no gap."""
    for copy in case.history.copies:
        offsets = _numbers(copy.content.offsets)
        for index in np.flatnonzero(offsets != np.arange(len(offsets)))[:1]:
            yield f"{case.at(copy.place)}: {copy.node} has offset {offsets[index]} where {index} is due"


def divergence(case: Case) -> Iterator[str]:
    """All nodes serve the same bytes of every partition."""
    nodes = case.nodes()
    for place in case.history.served_places():
        copies = case.history.copies_of(place)
        if missing := set(nodes) - {one.node for one in copies}:
            yield f"{case.at(place)}: {', '.join(sorted(missing))} does not serve it"
        first = copies[0]
        for other in copies[1:]:
            if other.digest != first.digest:
                yield f"{case.at(place)}: {first.node} and {other.node} differ {_first_difference(case, first, other)}"


def order(case: Case) -> Iterator[str]:
    """A message that was sent after another was acknowledged stands behind it in their partition."""
    sent = case.sent
    for place in np.unique(sent.place[sent.has_place]):
        rows = np.flatnonzero(sent.has_place & (sent.place == place))
        answered = rows[np.argsort(sent.answered_at[rows], kind="stable")]
        furthest = np.maximum.accumulate(sent.offset[answered])
        before = np.searchsorted(sent.answered_at[answered], sent.sent_at[rows], side="left")
        offsets = np.where(before > 0, furthest[before - 1], -1)
        for row, offset in _where_both(rows, offsets, offsets >= sent.offset[rows]):
            yield f"{case.at(place)}: {case.name(row)} at {sent.offset[row]} was sent after {offset} was stored"


def producer_order(case: Case) -> Iterator[str]:
    """The acknowledged messages of one producer stand in the order in which it sent them."""
    for copy in case.history.copies:
        rows = case.rows_of(copy)
        rows = rows[rows >= 0]
        rows = rows[case.sent.is_acknowledged[rows]]
        for producer in case.history.producers:
            own = rows[case.sent.producer[rows] == producer.number]
            sequences = case.sent.sequence[own]
            furthest = np.maximum.accumulate(sequences)
            for row, last in _where_both(own, furthest, sequences < furthest):
                yield f"{case.at(copy.place)}: {copy.node} has {case.name(row)} behind {producer.name}/{last}"


# --- what was shown on the way ----------------------------------------------------------------------------------------


def vanished(case: Case) -> Iterator[str]:
    """What one reader saw at an offset is what every node serves there at the end."""
    for got in case.history.deliveries:
        places, offsets, messages = _numbers(got.place), case.offsets_of(got), _numbers(got.message)
        for place in np.unique(places):
            own = np.flatnonzero(places == place)
            for copy in case.history.copies_of(int(place)):
                found, is_there = _look_up(copy, offsets[own])
                for index, other in _where_both(own, found, ~is_there | (found != messages[own])):
                    saw = (
                        f"{got.reader} saw {case.history.named(int(messages[index]))} at {offsets[index]} on {got.node}"
                    )
                    has = case.history.named(other) if is_there[np.searchsorted(own, index)] else "none"
                    yield f"{case.at(place)}: {saw}, {copy.node} has {has}"


def reader_order(case: Case) -> Iterator[str]:
    """A subscriber gets every message once, in the order of offsets, for as long as its session lasts."""
    for got in case.history.deliveries:
        sessions, places, offsets = _numbers(got.session), _numbers(got.place), case.offsets_of(got)
        by_session = np.lexsort((np.arange(len(offsets)), places, sessions))
        sessions, places, offsets = sessions[by_session], places[by_session], offsets[by_session]
        goes_on = (sessions[1:] == sessions[:-1]) & (places[1:] == places[:-1])
        for index in np.flatnonzero(goes_on & (offsets[1:] != offsets[:-1] + 1)):
            due, found = offsets[index] + 1, offsets[index + 1]
            yield f"{case.at(places[index])}: {got.reader} got offset {found} where {due} is due"


def stale_reads(case: Case) -> Iterator[str]:
    """A read to the end shows all that was acknowledged, or shown to anybody, before it began."""
    sent = case.sent
    for place, where in enumerate(case.history.places):
        tails = [tail for tail in case.history.tails if tail.place == where]
        if not tails:
            continue
        stored = sent.has_place & (sent.place == place)
        times = [sent.answered_at[stored], np.array([tail.ended for tail in tails])]
        ends = [sent.offset[stored] + 1, _numbers([tail.end for tail in tails])]
        for got in case.history.deliveries:
            own = _numbers(got.place) == place
            times.append(np.asarray(got.at)[own])
            ends.append(case.offsets_of(got)[own] + 1)
        known_at, known_end = np.concatenate(times), np.concatenate(ends)
        in_time = np.argsort(known_at, kind="stable")
        known_at, furthest = known_at[in_time], np.maximum.accumulate(known_end[in_time])
        for tail in tails:
            before = int(np.searchsorted(known_at, tail.began, side="left"))
            if before and tail.end < furthest[before - 1]:
                since = known_at[np.searchsorted(furthest, furthest[before - 1])]
                yield (
                    f"{where}: {tail.reader} read on {tail.node} up to {tail.end} from {tail.began:.3f} to "
                    f"{tail.ended:.3f} s, but it was known to reach {furthest[before - 1]} at {since:.3f} s"
                )


def undelivered(case: Case) -> Iterator[str]:
    """A subscriber that is promised everything got every acknowledged message of its topic."""
    for got, times in _received(case):
        missing = case.sent.is_acknowledged & (times == 0) & (case.sent.topic == case.topics[got.all_of])
        for row in map(int, np.flatnonzero(missing)):
            yield f"{case.name(row)} was acknowledged ({_where(case, row)}), {got.reader} never got it"


def delivered_twice(case: Case) -> Iterator[str]:
    """A subscriber that is promised everything once got nothing again, in whichever session."""
    for got, times in _received(case):
        for row in map(int, np.flatnonzero(times > 1)):
            yield f"{got.reader} got {case.name(row)} {times[row]} times"


def cursors_back(case: Case) -> Iterator[str]:
    """A cursor is never found before a place to which it was moved earlier."""
    moves: dict[tuple[str, object], list[tuple[float, int]]] = {}
    for event in case.history.cursors:
        if event.kind == "moved":
            moves.setdefault((event.name, event.place), []).append((event.ended, event.offset))
    furthest: dict[tuple[str, object], tuple[list[float], list[int]]] = {}
    for name, found in moves.items():
        found.sort()
        ends = np.maximum.accumulate(_numbers([offset for _, offset in found]))
        furthest[name] = ([ended for ended, _ in found], ends.tolist())
    for event in case.history.cursors:
        ended, offsets = furthest.get((event.name, event.place), ([], []))
        before = bisect_left(ended, event.began)
        if event.kind == "found" and before and event.offset < offsets[before - 1]:
            was = offsets[before - 1]
            yield f"{event.place}: cursor {event.name} is at {event.offset} on {event.node}, it was at {was}"


def stalled(case: Case) -> Iterator[str]:
    """After the faults, and with a majority during them, everything goes on without a hand."""
    yield from case.history.stalls


def two_leaders(case: Case) -> Iterator[str]:
    """A group has one leader in a term."""
    for (group, term), nodes in sorted(case.history.leaders.items()):
        if len(nodes) > 1:
            yield f"{group}: {', '.join(sorted(nodes))} led in term {term}"


CHECKS: Final[dict[str, Callable[[Case], Iterator[str]]]] = {
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
    "acknowledged and not delivered": undelivered,
    "delivered twice": delivered_twice,
    "cursor went back": cursors_back,
    "two leaders of one term": two_leaders,
    "did not go on": stalled,
}


def gap_list(history: History, longer_than_s: float) -> list[tuple[float, float]]:
    """From when to when nothing was acknowledged to anybody, where that took longer."""
    times = np.unique(Case(history).sent.answered_at)
    times = times[times > 0]
    return [(float(times[index]), float(times[index + 1])) for index in np.flatnonzero(np.diff(times) > longer_than_s)]


def rates(history: History, began: float, seconds: float, bin_s: float) -> list[float]:
    """Acknowledgements per second in each stretch of time."""
    times = Case(history).sent.answered_at
    counts, _ = np.histogram(times, np.arange(began, began + seconds + bin_s, bin_s))
    return [float(count) / bin_s for count in counts]


# --- inner ------------------------------------------------------------------------------------------------------------


def _received(case: Case) -> Iterator[tuple[Deliveries, Numbers]]:
    """For each subscriber that is promised everything once, how often it got each message."""
    for got in case.history.deliveries:
        if got.all_of in case.topics:
            rows = case.rows(_numbers(got.message), _numbers(got.place))
            yield got, np.bincount(rows[rows >= 0], minlength=len(case.sent.fate))


def _numbers(values: object) -> Numbers:
    return np.asarray(values, dtype=np.int64)


def _joined(columns: list[Numbers]) -> Numbers:
    return np.concatenate(columns) if columns else _numbers([])


def _joined_times(columns: list[Times]) -> Times:
    return np.concatenate(columns) if columns else np.asarray([], np.float64)


def _look_up(copy: Copy, offsets: Numbers) -> tuple[Numbers, Marks]:
    """The messages that stand at these offsets, and whether there are any."""
    known, messages = _numbers(copy.content.offsets), _numbers(copy.content.messages)
    if not len(known):
        return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
    places = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
    return messages[places], known[places] == offsets


def _where_both(rows: Numbers, others: Numbers, marks: Marks) -> Iterator[tuple[int, int]]:
    for index in np.flatnonzero(marks):
        yield int(rows[index]), int(others[index])


def _where(case: Case, row: int) -> str:
    place = int(case.sent.place[row])
    return "through the text protocol" if place == NOWHERE else f"{case.at(place)} at {case.sent.offset[row]}"


def _first_difference(case: Case, one: Copy, other: Copy) -> str:
    for mine, theirs in zip(one.content.messages, other.content.messages, strict=False):
        if mine != theirs:
            return f"where one has {case.history.named(mine)} and the other {case.history.named(theirs)}"
    if len(one.content.messages) != len(other.content.messages):
        return f"in length: {len(one.content.messages)} and {len(other.content.messages)} messages"
    return "in their bytes, though the messages are the same"

"""What happens in a play, told in lines that a person reads at a glance: `[Broker n1 LEADER] INFO: New leader n1`.

Nodes log JSON for this. Lines of interest become text with the time at which the node wrote them; the role is the one
it had then, as its own lines tell. Lines of several nodes, and what publishers and subscribers say, are put in the
order of their times, so nothing is told before all logs have been looked at behind it.
"""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

Facts = dict[str, Any]

_POLL_S: Final = 0.02
# A line is in its log so long after the time it bears, at most.
_WRITTEN_S: Final = 0.05
# What is proposed at the wish of a subscriber or a node; the rest follows from that.
_VERBS: Final = {
    "subscribe": "SUBSCRIBE",
    "unsubscribe": "UNSUBSCRIBE",
    "join": "JOIN_CLUSTER",
    "leave": "LEAVE_CLUSTER",
}
_PLACES: Final = {
    "joining": "Sync data with peer {node}",
    "voter": "New node joins the cluster {node}",
    "leaving": "Node is leaving the cluster: {node}",
    "removed": "Node leave the cluster: {node}",
}


class BrokerLines:
    """Follows the logs of nodes; `tell` gets one finished line after the other, oldest first."""

    def __init__(self, tell: Callable[[str], None], wall_s: Callable[[], float] = time.time) -> None:
        self.tell = tell
        self._wall_s = wall_s
        # Who leads, as the leader's own log tells.
        self.leader: str | None = None
        self._logs: dict[str, tuple[Path, int]] = {}
        self._roles: dict[str, str] = {}
        self._handled: dict[str, set[str]] = {}
        # From any thread: what was said and not told yet.
        self._said: deque[tuple[float, str]] = deque()
        self._waiting: list[tuple[float, str]] = []

    def follow(self, node: str, log: Path, address: str) -> None:
        """From where its log ends now: a node that is started again goes on with the one it had."""
        self.settle()
        _, read = self._logs.get(node, (log, 0))
        self._logs[node] = (log, read)
        self._roles[node] = "FOLLOWER"
        if self.leader == node:
            self.leader = None
        self.say(f"Broker {node} FOLLOWER", f"Running on {address}")

    def have_handled(self, what: str, nodes: Iterable[str]) -> bool:
        """Whether these nodes have told that they did it, such as `SUBSCRIBE 127.0.0.1:9000`."""
        return self._handled.get(what, set()) >= set(nodes)

    def forget_all(self) -> None:
        """The nodes of a scene are gone."""
        self.settle()
        self._logs.clear()
        self._roles.clear()
        self._handled.clear()
        self.leader = None

    def say(self, who: str, text: str) -> None:
        self._said.append((self._wall_s(), f"[{who}] INFO: {text}"))

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Tell what happens until something holds; whether it does within the time."""
        deadline = time.monotonic() + timeout_s
        while not (held := holds()) and time.monotonic() < deadline:
            self.drain()
            time.sleep(_POLL_S)
        self.drain()
        return held

    def settle(self) -> None:
        """Tell all that has happened until now."""
        until_s = self._wall_s()
        time.sleep(_WRITTEN_S)
        self.drain(until_s)

    def drain(self, until_s: float | None = None) -> None:
        """Tell what happened a moment ago, or until then: what is newer may still get something before it."""
        if until_s is None:
            until_s = self._wall_s() - _WRITTEN_S
        said = [self._said.popleft() for _ in range(len(self._said))]
        found = sorted([*self._waiting, *said, *self._logged()], key=lambda each: each[0])
        self._waiting = [each for each in found if each[0] > until_s]
        for moment_s, line in found[: len(found) - len(self._waiting)]:
            self.tell(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment_s))} {line}")

    def _logged(self) -> Iterator[tuple[float, str]]:
        for node, (log, read) in self._logs.items():
            if not log.exists():
                continue
            with log.open("rb") as file:
                file.seek(read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._logs[node] = (log, read + len(whole))
            for line in whole.splitlines():
                facts = _event(line)
                text = None if facts is None else self._text(node, facts)
                if facts is not None and text is not None:
                    moment_s = datetime.datetime.fromisoformat(facts["timestamp"]).timestamp()
                    yield moment_s, f"[Broker {node} {self._roles[node]}] INFO: {text}"

    def _text(self, node: str, facts: Facts) -> str | None:
        """What a person is told of an event; none for what is of no interest, or what another node tells."""
        match facts["event"]:
            case "asks_for_votes":
                self._roles[node] = "CANDIDATE"
                return f"Timeout, sending REQUEST_TO_VOTE, term: {facts['term']}"
            case "voted":
                self._roles[node] = "FOLLOWER"
                return f"Vote to leader {facts['candidate']}, term: {facts['term']}"
            case "new_leader":
                leads = facts["leader"] == node
                self._roles[node] = "LEADER" if leads else "FOLLOWER"
                self.leader = node if leads else self.leader
                return f"New leader {node}" if leads else None
            case "subscribed" | "unsubscribed" as event:
                verb = "SUBSCRIBE" if event == "subscribed" else "UNSUBSCRIBE"
                self._handled.setdefault(f"{verb} {facts['address']}", set()).add(node)
                return f"Handle append_entries: {verb} on topic: `{facts['topic']}` from {facts['address']}"
            case "change_forwarded" | "change_proposed" | "change_stored" | "change_decided":
                return _change(facts)
            case "http_publish":
                return f"New publish `{facts['topic']}`"
            case "asks_to_join":
                return f"Request JOIN_CLUSTER {facts['asked']}"
            case "member_changed" if self._roles[node] == "LEADER" and facts["place"] in _PLACES:
                return _PLACES[facts["place"]].format(node=facts["node"])
            case "node_down" if self._roles[node] == "LEADER":
                return f"Node is silent: {facts['node']}"
            case _:
                return None


def _change(facts: Facts) -> str | None:
    """The way of a change through the log."""
    verb = _VERBS.get(facts["change"])
    match facts["event"]:
        case "change_forwarded" if verb is not None:
            return f"Forward {verb} to leader: {facts['leader']}"
        case "change_proposed" if verb is not None and "topic" in facts:
            return f"New {verb} to `{facts['topic']}` from {facts.get('address') or facts['name']}"
        case "change_stored" if verb is not None:
            return f"Received append_entries, store in buffer: {verb}"
        case "change_decided" if verb is not None:
            return f"Majority ACK, append entries: {verb}"
    return None


def _event(line: bytes) -> Facts | None:
    """A line that is none, such as one of a traceback, tells nothing here."""
    try:
        facts = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return facts if isinstance(facts, dict) and {"event", "timestamp"} <= facts.keys() else None

"""What happens in a play, told in lines that a person reads at a glance: `[Broker n1 LEADER] INFO: New leader n1`.

Nodes log JSON for this. Lines of interest become text with the time at which the node wrote them; the role is the one
it had then, as its own lines tell. What publishers and subscribers say is put in between, by its time.
"""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

Facts = dict[str, Any]

_POLL_S: Final = 0.02
_PLACES: Final = {
    "joining": "Sync data with peer {node}",
    "voter": "New node joins the cluster {node}",
    "leaving": "Node is leaving the cluster: {node}",
    "removed": "Node leave the cluster: {node}",
}


class BrokerLines:
    """Follows the logs of nodes; `tell` gets one finished line after the other, oldest first."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._logs: dict[str, tuple[Path, int]] = {}
        self._roles: dict[str, str] = {}
        # From any thread: what was said and not told yet.
        self._said: deque[tuple[float, str]] = deque()

    def follow(self, node: str, log: Path, address: str) -> None:
        """From the beginning of its log."""
        self._logs[node] = (log, 0)
        self._roles[node] = "FOLLOWER"
        self.say(f"Broker {node} FOLLOWER", f"Running on {address}")

    def forget_all(self) -> None:
        """The nodes of a scene are gone."""
        self.drain()
        self._logs.clear()
        self._roles.clear()

    def say(self, who: str, text: str) -> None:
        self._said.append((time.time(), f"[{who}] INFO: {text}"))

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Tell what happens until something holds; whether it does within the time."""
        deadline = time.monotonic() + timeout_s
        while not (held := holds()) and time.monotonic() < deadline:
            self.drain()
            time.sleep(_POLL_S)
        self.drain()
        return held

    def drain(self) -> None:
        """Tell what was said and logged since the last time."""
        said = [self._said.popleft() for _ in range(len(self._said))]
        for moment_s, line in sorted([*said, *self._logged()], key=lambda each: each[0]):
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
                return f"New leader {node}" if leads else None
            case "subscribed" | "unsubscribed" as event:
                verb = "SUBSCRIBE" if event == "subscribed" else "UNSUBSCRIBE"
                return f"Handle append_entries: {verb} on topic: `{facts['topic']}` from {facts['address']}"
            case "joining":
                return f"Request JOIN_CLUSTER {facts['asked']}"
            case "member_changed" if self._roles[node] == "LEADER" and facts["place"] in _PLACES:
                return _PLACES[facts["place"]].format(node=facts["node"])
            case "node_down" if self._roles[node] == "LEADER":
                return f"Node is silent: {facts['node']}"
            case _:
                return None


def _event(line: bytes) -> Facts | None:
    """A line that is none, such as one of a traceback, tells nothing here."""
    try:
        facts = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return facts if isinstance(facts, dict) and {"event", "timestamp"} <= facts.keys() else None

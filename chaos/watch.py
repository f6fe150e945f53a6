"""Looks at who leads, all the time: for the promise that a term has one leader, and for the picture."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from testkit.cluster import BreakableCluster
from testkit.history import History

from holdfast.testing import NodeProcess
from holdfast.testing.asking import ask

CONTROL: Final = "control group"
EVERY_S: Final = 0.5
# Nodes tell of every leader of the control group, also of those that this did not see.
_TOLD: Final = re.compile(r"\bnew_leader\b.*\bleader=(\S+).*\bterm=(\d+)")
_ANSWER_S: Final = 1.0


@dataclass(slots=True)
class Reign:
    """One node led one group for this long, as far as was seen."""

    group: str
    node: str
    term: int
    began: float
    ended: float


class Watch:
    """Asks every node that runs, in a thread of its own, until `close`."""

    def __init__(self, cluster: BreakableCluster, history: History, every_s: float = EVERY_S) -> None:
        self._cluster = cluster
        self._history = history
        self._every_s = every_s
        self._stopping = threading.Event()
        self.reigns: dict[str, list[Reign]] = {}
        self._pool = ThreadPoolExecutor(len(cluster.nodes), thread_name_prefix="chaos-watch")
        self._thread = threading.Thread(target=self._run, name="chaos-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """A watch that saw nothing, or that stopped looking, has not seen that all is well."""
        if not self._thread.is_alive():
            self._history.stalls.append("nobody watched any more which nodes lead")
        elif not self._history.leaders:
            self._history.stalls.append("no node was seen to lead")
        self._stopping.set()
        self._thread.join()
        self._pool.shutdown()

    def read_logs(self) -> None:
        """Take note of all leaders that the nodes' logs tell of."""
        for node in self._cluster.nodes:
            for leader, term in _TOLD.findall(node.log()):
                self._history.leaders.setdefault((CONTROL, int(term)), set()).add(leader)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            nodes = [node for node in self._cluster.nodes if node.is_running and not node.is_paused]
            best: dict[str, tuple[int, str]] = {}
            for node, groups in zip(nodes, self._pool.map(_groups, nodes), strict=True):
                for group in groups:
                    if group["role"] == "leader":
                        name = CONTROL if group["topic"] is None else str(group["name"])
                        term = int(group["term"])
                        self._history.leaders.setdefault((name, term), set()).add(node.id)
                        # One that was replaced and does not know it has the lower term.
                        best[name] = max(best.get(name, (0, "")), (term, node.id))
            now = time.monotonic()
            for name, (term, node_id) in best.items():
                self._saw(name, node_id, term, now)

    def _saw(self, group: str, node: str, term: int, now: float) -> None:
        reigns = self.reigns.setdefault(group, [])
        if reigns and (reigns[-1].node, reigns[-1].term) == (node, term) and now - reigns[-1].ended < 4 * self._every_s:
            reigns[-1].ended = now
        else:
            reigns.append(Reign(group, node, term, now, now + self._every_s / 2))


def _groups(node: NodeProcess) -> list[dict[str, Any]]:
    answer = ask(node.http, "/v1/cluster/groups", _ANSWER_S)
    return list(answer.content["groups"]) if answer.status == 200 else []

"""Keeping the nodes of a local cluster running, and knowing how each of them is.

The loop looks at the processes several times a second; a thread asks any living node once a second how the cluster
is, so that a node that hangs delays neither the picture nor the end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.cli import cluster_table
from holdfast.model.cluster import ClusterDescription, NodeDescription
from holdfast.testing import ClusterFailed, LocalCluster, NodeProcess
from holdfast.testing.asking import ask

_TICK_S: Final = 0.1
_ASK_S: Final = 1.0
# A node that died is started again after this long, and after twice as long each time it dies young.
_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 30.0
_YOUNG_S: Final = 10.0


class Row(NamedTuple):
    """One node as it is shown."""

    id: str
    state: str
    role: str | None
    term: int | None
    leads: str | None
    lag: int | None
    text: str
    http: str
    peer: str
    pid: int | None


class StopNow(BaseException):
    """The second signal: nobody wants to wait for an orderly end."""


class Supervisor:
    """Runs the cluster until a signal. `rows` is how it is now; `tell` gets what happens."""

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        restart: bool,
        ready_file: Path | None,
        start_timeout_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self.is_ready = False
        self._cluster = cluster
        self._restart = restart
        self._ready_file = ready_file
        self._start_timeout_s = start_timeout_s
        self._tell = tell
        self._stopping = threading.Event()
        self._was_told = False
        self._described: ClusterDescription | None = None
        self._written: list[int | None] = []
        self._started_at = {node.id: time.monotonic() for node in cluster.nodes}
        self._pause_s = dict.fromkeys(self._started_at, _PAUSE_S_MIN / 2)
        # When a node that has died is due again; `None` where it stays away.
        self._due: dict[str, float | None] = {}

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None], on_tick: Callable[[], None]) -> None:
        """Until a signal has come and all nodes have left. Raises `ClusterFailed`, and `StopNow` on a second one."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        asking = threading.Thread(target=self._keep_asking, name="how the cluster is", daemon=True)
        asking.start()
        try:
            self._wait_until_ready(on_tick)
            if self.is_ready:
                on_ready()
            while not self._stopping.wait(_TICK_S):
                self._look()
                self._write_ready_file()
                on_tick()
            self._tell("stopping; a second Ctrl-C means now")
            on_tick()
            self._cluster.stop()
        except StopNow:
            self._cluster.kill()
            raise
        finally:
            self._stopping.set()
            if self._ready_file is not None:
                self._ready_file.unlink(missing_ok=True)
            asking.join()
            for number, handler in before.items():
                # Behind the end that was asked for there is nothing left to interrupt.
                signal.signal(number, signal.SIG_IGN if self._was_told else handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._stopping.is_set():
            raise StopNow
        self._was_told = True
        self._stopping.set()

    def _wait_until_ready(self, on_tick: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        waiting = list(self._cluster.nodes)
        while waiting and not self._stopping.wait(_TICK_S):
            for node in self._cluster.nodes:
                if not (node.is_running or node.was_removed):
                    raise ClusterFailed(f"{node.id} {_ending(node)} while it started\n{node.log_tail()}")
            waiting = [node for node in waiting if not (node.was_removed or _is_ready(node))]
            if waiting and time.monotonic() > deadline:
                names = ", ".join(node.id for node in waiting)
                tails = "\n".join(node.log_tail() for node in waiting)
                raise ClusterFailed(f"not ready within {self._start_timeout_s:g} s: {names}\n{tails}")
            on_tick()
        self.is_ready = not waiting
        if self.is_ready:
            self._write_ready_file()

    def _look(self) -> None:
        """Notice who has died, and start who is due."""
        now = time.monotonic()
        for node in self._cluster.nodes:
            if node.is_running:
                continue
            # Nobody wants a node back that was taken out, and it would not start.
            if node.was_removed:
                self._due.setdefault(node.id, None)
                continue
            if node.id not in self._due:
                self._due[node.id] = self._after_death(node, now)
            due = self._due[node.id]
            if due is not None and due <= now:
                del self._due[node.id]
                self._started_at[node.id] = now
                self._cluster.spawn(node)
                self._tell(f"{node.id} starts again (process {node.pid})")
        if not self._restart and not any(node.is_running for node in self._cluster.nodes):
            raise ClusterFailed(f"no node is left; their logs are in {self._cluster.data}")

    def _after_death(self, node: NodeProcess, now: float) -> float | None:
        if not self._restart:
            self._tell(f"{node.id} (process {node.pid}) {_ending(node)}; it stays away")
            return None
        is_young = now - self._started_at[node.id] < _YOUNG_S
        pause_s = min(_PAUSE_S_MAX, self._pause_s[node.id] * 2) if is_young else _PAUSE_S_MIN
        self._pause_s[node.id] = pause_s
        self._tell(f"{node.id} (process {node.pid}) {_ending(node)}; it starts again in {pause_s:g} s")
        return now + pause_s

    # --- how it is --------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        described = self._described
        by_name = {} if described is None else {each.node: each for each in described.nodes}
        nodes = sorted((*self._cluster.nodes, *self._cluster.removed), key=lambda node: node.id)
        return [self._row(node, by_name.get(node.id)) for node in nodes]

    def _row(self, node: NodeProcess, told: NodeDescription | None) -> Row:
        state = self._state(node, told)
        known = cluster_table.facts(told) if told is not None and state == "up" else {}
        return Row(
            node.id,
            state,
            known.get("role"),
            known.get("term"),
            known.get("leads"),
            known.get("lag"),
            node.text,
            node.http,
            node.peer,
            node.pid if node.is_running else None,
        )

    def _state(self, node: NodeProcess, told: NodeDescription | None) -> str:
        if node.was_removed:
            return "removed"
        if not node.is_running:
            if self._stopping.is_set():
                return "stopped"
            due = self._due.get(node.id)
            return _ending(node) if due is None else f"{_ending(node)}, starts again"
        if self._stopping.is_set():
            return "stopping"
        if not node.is_serving:
            return "starting"
        return "no answer" if told is not None and not told.is_up else "up"

    def _keep_asking(self) -> None:
        while not self._stopping.wait(_ASK_S):
            self._described = describe([node.http for node in self._belonging() if node.is_serving])

    def _belonging(self) -> list[NodeProcess]:
        return [node for node in self._cluster.nodes if not node.was_removed]

    # --- the file ---------------------------------------------------------------------------------

    def _write_ready_file(self) -> None:
        """Whole or not there; written again when a node is another process, once that serves."""
        belonging = self._belonging()
        pids = [node.pid for node in belonging]
        if self._ready_file is None or pids == self._written or not all(node.is_serving for node in belonging):
            return
        nodes = [
            {"id": node.id, "pid": node.pid, "text": node.text, "http": node.http, "peer": node.peer}
            for node in belonging
        ]
        temporary = self._ready_file.with_name(f"{self._ready_file.name}.{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode({"nodes": nodes}) + b"\n")
        temporary.replace(self._ready_file)
        self._written = pids


def _is_ready(node: NodeProcess) -> bool:
    return node.is_serving and ask(node.http, "/ready").status == 200


def describe(addresses: list[str]) -> ClusterDescription | None:
    """The cluster as the first node sees it that answers; `None` where none does."""
    for address in addresses:
        answer = ask(address, "/v1/cluster")
        if answer.status == 200:
            return msgspec.convert(answer.content, ClusterDescription)
    return None


def _ending(node: NodeProcess) -> str:
    code = node.exit_code
    if code is not None and code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with code {code}"

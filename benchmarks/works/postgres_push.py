"""Push over a PostgreSQL that the broker starts itself: many items a request, one a request, and while it is away."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.load import http, push
from benchmarks.load.pipeline import Flow
from benchmarks.load.push import PushLoad
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, wait_for
from benchmarks.works.publish import CPU, RATE, verify

REPLAY = "replayed_per_s"
REPLAY_TIMEOUT_S = 120.0
PARTITIONS = 10
MANY = 1_000
OURS = "Holdfast over PostgreSQL"
_SETTING = "--store postgres"


def _push(connections: int, items: int, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, "group", "--store", "postgres") as broker:
        http.ask(broker.http_port, http.create_topic("bench", PARTITIONS))
        http.ask(broker.http_port, http.create_topic("probe", PARTITIONS))

        def put_on(queue: str, seconds: float) -> Flow:
            load = PushLoad(broker.http_port, queue, PARTITIONS, connections, items, seconds)
            return generate(settings, push.run, load)

        # A database that has just been made has everything to do for the first time.
        put_on("probe", settings.probe_seconds)
        before_s = broker.server.cpu_s()
        flow = put_on("bench", settings.seconds)
        used_s = broker.server.cpu_s() - before_s
        verify(broker.stored("bench"), flow.messages)
        found = {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6}
        return Measured(found, f"{connections} connections, {items:,} a request")


def _push_away(connections: int, items: int, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, "group", "--store", "postgres") as broker:
        http.ask(broker.http_port, http.create_topic("bench", PARTITIONS))
        load = PushLoad(broker.http_port, "bench", PARTITIONS, connections, items, settings.seconds)
        with _silent(broker.server.pid):
            # The first ones find out that nobody answers.
            http.ask(broker.http_port, http.publish("bench", 1))
            before_s = broker.server.cpu_s()
            flow = generate(settings, push.run, load)
            used_s = broker.server.cpu_s() - before_s
        back_s = time.monotonic()
        wait_for(lambda: broker.stored("bench") > flow.messages or None, "everything to be stored", REPLAY_TIMEOUT_S)
        verify(broker.stored("bench"), flow.messages + 1)
        replayed_per_s = flow.messages / (time.monotonic() - back_s)
        found = {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6, REPLAY: replayed_per_s}
        return Measured(found, f"{connections} connections, {items:,} a request")


@contextmanager
def _silent(broker_pid: int) -> Iterator[None]:
    """The database of a broker says nothing any more: killed, it would be started again."""
    database = next(pid for pid in _children(broker_pid) if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes())
    pids = [database, *_children(database)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


MANY_A_REQUEST = Work(
    name="postgres-push-1000",
    title="Push over a PostgreSQL, 1,000 items of 190 bytes a request, each with a transaction id",
    figure=RATE,
    better="higher",
    reference=OURS,
    contenders=(Contender(OURS, holdfast.NAME, _SETTING, partial(_push, 10, MANY)),),
)
ONE_A_REQUEST = Work(
    name="postgres-push-1",
    title="Push over a PostgreSQL, one item of 190 bytes a request, 64 connections",
    figure=RATE,
    better="higher",
    reference=OURS,
    contenders=(Contender(OURS, holdfast.NAME, _SETTING, partial(_push, 64, 1)),),
)
AWAY = Work(
    name="postgres-push-away",
    title="Push while the PostgreSQL is silent, 1,000 items of 190 bytes a request, synced; and storing them then",
    figure=RATE,
    better="higher",
    reference=OURS,
    contenders=(Contender(OURS, holdfast.NAME, _SETTING, partial(_push_away, 10, MANY)),),
)

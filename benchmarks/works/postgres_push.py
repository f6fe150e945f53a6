"""Push over a PostgreSQL that the broker starts itself: many items a request, one a request, and while it is away."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.load import http, pipeline, push, steady
from benchmarks.load.background import Running, background
from benchmarks.load.pipeline import Flow
from benchmarks.load.steady import Answers, Steady
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, wait_for
from benchmarks.peers.holdfast import Broker
from benchmarks.watch import family
from benchmarks.works.publish import CPU, RATE, verify

REPLAY = "replayed_per_s"
REPLAY_TIMEOUT_S = 120.0
PARTITIONS = 10
MANY = 1_000
OURS = "Holdfast over PostgreSQL"
PLAIN = "the same, values without ids"
BESIDE_LIVE = "the same, stored again beside live ones"
LIVE_PER_S, LIVE_TOGETHER = 20_000, 100
_SETTING = "--store postgres"


def _push(connections: int, items: int, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, "group", "--store", "postgres") as broker:
        broker.create("bench", "probe", partitions=PARTITIONS)

        def put_on(queue: str, seconds: float) -> Flow:
            load = push.load(broker.http_port, queue, PARTITIONS, connections, items, seconds)
            return generate(settings, pipeline.run, load)

        # A database that has just been made has everything to do for the first time.
        put_on("probe", settings.probe_seconds)
        before_s = broker.server.cpu_s()
        flow = put_on("bench", settings.seconds)
        used_s = broker.server.cpu_s() - before_s
        verify(broker.stored("bench"), flow.messages)
        found = {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6}
        return Measured(found, f"{connections} connections, {items:,} a request")


def _away(what: str, settings: Settings) -> Measured:
    """What is taken while the database is silent, and how fast it is stored when it is back."""
    note = f"10 connections, {MANY:,} a request"
    with holdfast.serve(settings.directory, "group", "--store", "postgres") as broker, ExitStack() as beside:
        broker.create("bench", "live", partitions=PARTITIONS)
        live: Running[Answers] | None = None
        with _silent(broker.server.pid):
            # The first ones find out that nobody answers.
            http.ask(broker.http_port, http.publish("bench", 1))
            before_s = broker.server.cpu_s()
            flow = _flow(what, broker, settings)
            used_s = broker.server.cpu_s() - before_s
            if what == BESIDE_LIVE:
                request = http.publish("live", LIVE_TOGETHER)
                load = Steady(broker.http_port, request, LIVE_TOGETHER, LIVE_PER_S / LIVE_TOGETHER)
                live = beside.enter_context(background(steady.run, load))
        back_s = time.monotonic()
        wait_for(lambda: broker.stored("bench") > flow.messages or None, "everything to be stored", REPLAY_TIMEOUT_S)
        stored_s = time.monotonic()
        if live is not None:
            live_per_s = live.stop().per_s(back_s, stored_s) * LIVE_TOGETHER
            note += f", stored again beside {live_per_s:,.0f} live messages a second"
        verify(broker.stored("bench"), flow.messages + 1)
    found = {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6, REPLAY: flow.messages / (stored_s - back_s)}
    return Measured(found, note)


def _flow(what: str, broker: Broker, settings: Settings) -> Flow:
    load = push.load(broker.http_port, "bench", PARTITIONS, 10, MANY, settings.seconds)
    if what == PLAIN:
        load = broker.http_pipeline(http.publish("bench", MANY), MANY, 10, 1, settings.seconds)
    return generate(settings, pipeline.run, load)


@contextmanager
def _silent(broker_pid: int) -> Iterator[None]:
    """The database of a broker says nothing any more: killed, it would be started again."""
    children = family(broker_pid)[1:]
    pids = family(next(pid for pid in children if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()))
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a worker of the database that has ended
            os.kill(pid, number)


MANY_A_REQUEST = Work(
    name="postgres-push-1000",
    title="Push over a PostgreSQL, 1,000 items of 190 bytes a request, each with a transaction id",
    figure=RATE,
    reference=OURS,
    contenders=(Contender(OURS, holdfast.NAME, _SETTING, partial(_push, 10, MANY)),),
)
ONE_A_REQUEST = Work(
    name="postgres-push-1",
    title="Push over a PostgreSQL, one item of 190 bytes a request, 64 connections",
    figure=RATE,
    reference=OURS,
    contenders=(Contender(OURS, holdfast.NAME, _SETTING, partial(_push, 64, 1)),),
)
AWAY = Work(
    name="postgres-push-away",
    title="Push while the PostgreSQL is silent, 1,000 items of 190 bytes a request, synced; and storing them then",
    figure=RATE,
    reference=OURS,
    contenders=tuple(
        Contender(what, holdfast.NAME, _SETTING, partial(_away, what)) for what in (OURS, PLAIN, BESIDE_LIVE)
    ),
)

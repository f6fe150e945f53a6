"""Push over a PostgreSQL that the broker starts itself: many items a request, and one a request from many clients."""

from functools import partial

from benchmarks.load import http, push
from benchmarks.load.pipeline import Flow
from benchmarks.load.push import PushLoad
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast
from benchmarks.works.publish import CPU, RATE, verify

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

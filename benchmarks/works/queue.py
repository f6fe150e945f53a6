"""Numbered queues on three nodes: one message a request, by clients that are spread over the nodes."""

from functools import partial

from benchmarks.load import http, queue
from benchmarks.load.queue import QueueLoad
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, holdfast_cluster
from benchmarks.peers.holdfast_cluster import HoldfastCluster

CLIENTS = 32
APPEND = "Holdfast"
OWN = "Holdfast, a pointer for each client"
SHARED = "Holdfast, one pointer for all clients"
# More than can be read in the time that a run has.
_MESSAGES_PER_S = 40_000
_FILLED_AT_ONCE = 1000


def _created(cluster: HoldfastCluster) -> int:
    made: int = http.ask(cluster.nodes[0].http_port, queue.request("/create_queue", "{}"))["queue_id"]
    cluster.leader(f"queue-{made}")
    return made


def _measured(cluster: HoldfastCluster, settings: Settings, requests: list[bytes]) -> Measured:
    ports = tuple(node.http_port for node in cluster.nodes)
    cpu_s = cluster.cpu_s()
    flow = generate(settings, queue.run, QueueLoad(ports, tuple(requests), settings.seconds))
    used = (cluster.cpu_s() - cpu_s) / flow.messages * 1_000_000
    return Measured({"msg_per_s": flow.messages / flow.seconds, "cpu_us_per_msg": used}, f"{len(requests)} clients")


def _append(settings: Settings) -> Measured:
    with holdfast_cluster.serve(settings.directory) as cluster:
        made = _created(cluster)
        return _measured(cluster, settings, [queue.request("/append", f'{{"queue_id":{made},"value":42}}')] * CLIENTS)


def _read(is_shared: bool, settings: Settings) -> Measured:
    with holdfast_cluster.serve(settings.directory) as cluster:
        made = _created(cluster)
        port = cluster.leader(f"queue-{made}").http_port
        per_reader = _MESSAGES_PER_S * max(1.0, settings.seconds)
        for _ in range(int(per_reader / (1 if is_shared else 8)) // _FILLED_AT_ONCE):
            http.ask(port, http.publish(f"queue-{made}", _FILLED_AT_ONCE))
        clients = ["c" if is_shared else f"c{number}" for number in range(CLIENTS)]
        requests = [queue.request("/read", f'{{"queue_id":{made},"client_id":"{client}"}}') for client in clients]
        return _measured(cluster, settings, requests)


APPENDS = Work(
    name="queue-append",
    title="Three nodes, numbered queues: one append a request",
    figure="msg_per_s",
    better="higher",
    reference=APPEND,
    contenders=(Contender(APPEND, holdfast.NAME, "--sync group on all three", _append),),
)
READS = Work(
    name="queue-read",
    title="Three nodes, numbered queues: one read a request",
    figure="msg_per_s",
    better="higher",
    reference=SHARED,
    contenders=(
        Contender(SHARED, holdfast.NAME, "--sync group on all three", partial(_read, True)),
        Contender(OWN, holdfast.NAME, "--sync group on all three", partial(_read, False)),
    ),
)

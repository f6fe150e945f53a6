"""Numbered queues on three nodes: one message a request, by clients that are spread over the nodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.load import http, latency
from benchmarks.load.latency import ClosedLoop
from benchmarks.load.wire import LoadFailed
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast
from benchmarks.peers.holdfast import Cluster
from benchmarks.process import HOST, scratch
from holdfast.testing.ports import free_port

CLIENTS = 32
APPEND = "Holdfast"
PROXIED = "Holdfast behind its proxy"
OWN = "Holdfast, a pointer for each client"
SHARED = "Holdfast, one pointer for all clients"
# More than can be read in the time that a run has.
_MESSAGES_PER_S = 40_000
_FILLED_AT_ONCE = 1000
_NOTHING = b'"message_id":null'


def _created(cluster: Cluster) -> int:
    made: int = http.ask(cluster.nodes[0].http_port, http.post_json("/create_queue", {}))["queue_id"]
    cluster.leader(f"queue-{made}")
    return made


class _Reads(http.PublishReplies):
    """A read that finds nothing is no message."""

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        if buffer.find(_NOTHING, 0, size_bytes) >= 0:
            raise LoadFailed("everything was read before the time was over")
        return super().feed(buffer, size_bytes)


def _measured(
    cluster: Cluster, settings: Settings, requests: list[bytes], replies: type[http.PublishReplies]
) -> Measured:
    load = ClosedLoop(
        ports=tuple(node.http_port for node in cluster.nodes),
        dial=http.dial,
        replies=partial(replies, 1),
        requests=tuple(requests),
        seconds=settings.seconds,
        warmup_seconds=0,
    )
    before_s = cluster.cpu_s()
    found = generate(settings, latency.run, load)
    used_us = (cluster.cpu_s() - before_s) / found.messages * 1e6
    return Measured({"msg_per_s": found.per_s, "cpu_us_per_msg": used_us}, f"{len(requests)} clients")


def _append(settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        request = http.post_json("/append", {"queue_id": _created(cluster), "value": 42})
        return _measured(cluster, settings, [request] * CLIENTS, http.PublishReplies)


def _read(is_shared: bool, settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        made = _created(cluster)
        port = cluster.leader(f"queue-{made}").http_port
        per_reader = _MESSAGES_PER_S * max(1.0, settings.seconds)
        for _ in range(int(per_reader / (1 if is_shared else 8)) // _FILLED_AT_ONCE):
            http.ask(port, http.publish(f"queue-{made}", _FILLED_AT_ONCE))
        clients = ["c" if is_shared else f"c{number}" for number in range(CLIENTS)]
        requests = [http.post_json("/read", {"queue_id": made, "client_id": client}) for client in clients]
        return _measured(cluster, settings, requests, _Reads)


@contextmanager
def _proxy(settings: Settings, broker_port: int) -> Iterator[int]:
    """A proxy before one broker, on this port."""
    with scratch(settings.directory) as directory:
        ready_path = directory / "ready.json"
        port = free_port()
        command = ["proxy", "--listen", f"{HOST}:{port}", "--groups", f"g={HOST}:{broker_port}"]
        server = holdfast.launch([*command, "--ready-file", str(ready_path), "--quiet"], directory)
        try:
            server.wait_until(ready_path.exists)
            yield port
        finally:
            server.stop()


def _p50_us(settings: Settings, port: int) -> float:
    made = http.ask(port, http.post_json("/create_queue", {}))["queue_id"]
    load = ClosedLoop(
        ports=(port,),
        dial=http.dial,
        replies=partial(http.PublishReplies, 1),
        requests=(http.post_json("/append", {"queue_id": made, "value": 42}),),
        seconds=settings.seconds / 2,
    )
    return generate(settings, latency.run, load).p50_us


def _proxied(settings: Settings) -> Measured:
    """Both ways to one broker, one after the other: what is in between is the proxy."""
    with (
        holdfast.serve(settings.directory, "none") as broker,
        _proxy(settings, broker.http_port) as port,
    ):
        direct_us = _p50_us(settings, broker.http_port)
        proxied_us = _p50_us(settings, port)
    figures = {"added_us": proxied_us - direct_us, "direct_p50_us": direct_us, "proxied_p50_us": proxied_us}
    return Measured(figures, "1 client, any core")


APPENDS = Work(
    name="queue-append",
    title="Three nodes, numbered queues: one append a request",
    figure="msg_per_s",
    reference=APPEND,
    contenders=(Contender(APPEND, holdfast.NAME, "--sync group on all three", _append),),
)
READS = Work(
    name="queue-read",
    title="Three nodes, numbered queues: one read a request",
    figure="msg_per_s",
    reference=SHARED,
    contenders=(
        Contender(SHARED, holdfast.NAME, "--sync group on all three", partial(_read, True)),
        Contender(OWN, holdfast.NAME, "--sync group on all three", partial(_read, False)),
    ),
)
PROXY = Work(
    name="proxy",
    title="One append at a time through a proxy: what it adds to the p50",
    figure="added_us",
    reference=PROXIED,
    contenders=(Contender(PROXIED, holdfast.NAME, "--sync none", _proxied),),
)

"""One run: find the broker's ports, make a topic, put the load on, tidy up."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.cli import http, session
from holdfast.cli.bench import latency, wires
from holdfast.cli.bench.consume import consume_http, consume_text
from holdfast.cli.bench.pump import Load, OnProgress, pump
from holdfast.cli.bench.report import Flow, Histogram, Result
from holdfast.cli.bench.via import Via
from holdfast.cli.bench.wires import BenchFailed, HttpReplies, LineReplies
from holdfast.client.addresses import Address, parse_url
from holdfast.model.errors import BadValue, ConnectionLost
from holdfast.model.limits import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from holdfast.client import BlockingClient

# What surrounds a message in a request, at most; for checking that a request is not too large.
_OVERHEAD_BYTES: Final = 64
_FILL_BATCH: Final = 1000
_FILL_WINDOW: Final = 8000
_SAMPLES: Final = 10
_SAMPLE_MESSAGES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for; `topic` is `None` for one that is made for the run and deleted behind it."""

    server: str
    text: str | None
    via: Via
    topic: str | None = None
    messages: int
    size_bytes: int
    batch: int = 1
    window: int = 1
    connections: int = 1

    def checked(self) -> Plan:
        if self.batch * (self.size_bytes + _OVERHEAD_BYTES) > BATCH_BYTES_MAX:
            raise BadValue(
                f"a request of {self.batch} messages of {self.size_bytes} bytes is more than {BATCH_BYTES_MAX} bytes; "
                "make --batch or --size smaller"
            )
        if self.window < self.batch:
            raise BadValue(f"--window {self.window} does not hold one request of --batch {self.batch} messages")
        return self


class Bench:
    """A broker that is measured."""

    def __init__(self, plan: Plan, broker: BlockingClient) -> None:
        self.plan = plan.checked()
        self.broker = broker
        self.http = parse_url(plan.server)[0]
        self.text = self._text_address() if plan.via is Via.TEXT else self.http

    def _text_address(self) -> Address:
        from holdfast.node.config import parse_address

        given = self.plan.text or self.broker.info().addresses.get("text")
        if given is None:
            raise BenchFailed("this broker has no text port; use --protocol http")
        host, port = parse_address("--text", given)
        # A broker that listens everywhere is reached where its HTTP port was.
        return Address(self.http.host if host in ("0.0.0.0", "::") else host, port)

    # --- the three benches ----------------------------------------------------------------------------

    def publish(self, on_progress: OnProgress) -> Result:
        plan = self.plan
        with self._topic() as topic:
            flow = pump(self._load(plan.via, topic, plan.batch, plan.window, plan.connections), on_progress)
        shape = {"batch": plan.batch, "window": plan.window, "connections": plan.connections}
        assert flow.latencies is not None
        return self._result("publish", topic, flow, {"request_acknowledged": flow.latencies}, shape)

    def consume(self, on_fill: OnProgress, on_progress: OnProgress) -> Result:
        plan = self.plan
        with self._topic() as topic:
            if plan.topic is None:
                batch = max(1, min(_FILL_BATCH, BATCH_BYTES_MAX // 4 // (plan.size_bytes + _OVERHEAD_BYTES)))
                pump(self._load(Via.BATCHES, topic, batch, max(batch, _FILL_WINDOW), 1), on_fill)
            described = self.broker.describe(topic).partitions[0]
            messages = min(plan.messages, described.end_offset - described.start_offset)
            if not messages:
                raise BenchFailed(f"there is nothing to read in partition 0 of {topic}")
            size_bytes = plan.size_bytes
            if plan.topic is not None:
                size_bytes = self._mean_bytes(topic, described.start_offset, described.start_offset + messages)
            if plan.via is Via.TEXT:
                with self._cursor(topic) as name:
                    flow = consume_text(self.text, topic, name, messages, on_progress)
            else:
                flow = consume_http(self.http, plan.via, topic, described.start_offset, messages, on_progress)
        latencies = {"read_answered": flow.latencies} if flow.latencies is not None else {}
        return self._result("consume", topic, flow, latencies, {}, size_bytes)

    def latency(self, on_progress: OnProgress) -> Result:
        plan = self.plan
        (value,) = wires.payloads(1, plan.size_bytes)
        with self._topic() as topic, contextlib.ExitStack() as stack:
            if plan.via is Via.TEXT:
                probe = latency.text_probe(stack, self.text, topic, value)
            else:
                probe = latency.http_probe(stack, self.http, plan.via, topic, value)
            flow, latencies = latency.measure(probe, plan.messages, on_progress)
        return self._result("latency", topic, flow, latencies, {})

    # --- inner ----------------------------------------------------------------------------------------

    def _load(self, via: Via, topic: str, batch: int, window: int, connections: int) -> Load:
        values = wires.payloads(batch, self.plan.size_bytes)
        now_ms = time.time_ns() // 1_000_000

        def request(count: int) -> bytes:
            if via is Via.TEXT:
                return wires.text_publish(topic, values[:count])
            if via is Via.HTTP:
                return wires.http_publish(self.http, topic, values[:count])
            return wires.batches_publish(self.http, topic, values[:count], now_ms)

        is_text = via is Via.TEXT
        return Load(
            dial=(lambda: wires.dial_text(self.text)) if is_text else (lambda: wires.dial(self.http)),
            replies=LineReplies if is_text else HttpReplies,
            request=request,
            units=(lambda count: count) if is_text else (lambda count: 1),
            messages=self.plan.messages,
            batch=batch,
            window=window,
            connections=connections,
        )

    @contextlib.contextmanager
    def _topic(self) -> Iterator[str]:
        """The topic that was named, or one for this run alone."""
        if self.plan.topic is not None:
            self.broker.create_topic(self.plan.topic, exist_ok=True)
            yield self.plan.topic
            return
        topic = f"bench-{secrets.token_hex(6)}"
        self.broker.create_topic(topic)
        try:
            yield topic
        finally:
            self.broker.delete_topic(topic)

    @contextlib.contextmanager
    def _cursor(self, topic: str) -> Iterator[str]:
        name = f"bench-{secrets.token_hex(6)}"
        self.broker.seek(topic, name, "earliest")
        try:
            yield name
        finally:
            self.broker.delete_cursor(topic, name)

    def _mean_bytes(self, topic: str, start: int, end: int) -> int:
        """The size of some messages from all over, to turn a rate of messages into one of bytes."""
        places = range(start, end, max(1, (end - start) // _SAMPLES))
        samples = [self.broker.read(topic, 0, place, messages_max=_SAMPLE_MESSAGES) for place in places]
        sizes = [len(message.value) for sample in samples for message in sample]
        return sum(sizes) // max(1, len(sizes))

    def _result(
        self,
        bench: str,
        topic: str,
        flow: Flow,
        latencies: dict[str, Histogram],
        shape: dict[str, int],
        size_bytes: int | None = None,
    ) -> Result:
        return Result(
            bench=bench,
            via=self.plan.via.value,
            topic=topic,
            size_bytes=self.plan.size_bytes if size_bytes is None else size_bytes,
            flow=flow,
            latencies=latencies,
            acknowledges_after_sync=self._acknowledges_after_sync(),
            shape=shape,
        )

    def _acknowledges_after_sync(self) -> bool | None:
        try:
            metrics = http.get(self.http.host, self.http.port, "/metrics", wires.SOCKET_TIMEOUT_S).content["metrics"]
        except (ConnectionLost, KeyError, TypeError):
            return None
        found = [each for each in metrics if each["name"] == "holdfast_acknowledges_after_sync"]
        return bool(found[0]["samples"][0]["value"]) if found else None


@contextlib.contextmanager
def prepared(plan: Plan) -> Iterator[Bench]:
    """A bench that is connected to its broker."""
    with session.connected(plan.server) as broker:
        yield Bench(plan, broker)

"""Reading at full speed what is stored already."""

from __future__ import annotations

import time

from holdfast.cli.bench.pump import OnProgress
from holdfast.cli.bench.report import Flow, Histogram
from holdfast.cli.bench.via import Via
from holdfast.cli.bench.wires import (
    BenchFailed,
    HttpReplies,
    LineReplies,
    ask_text,
    dial,
    dial_text,
    http_read,
    received,
)
from holdfast.client.addresses import Address
from holdfast.model.limits import HTTP_READ_MESSAGES_MAX
from holdfast.wire.record_batch import header, split_batches

_ACCEPT = {Via.HTTP: "application/json", Via.BATCHES: "application/vnd.holdfast.batches"}


def consume_text(address: Address, topic: str, name: str, messages: int, on_progress: OnProgress) -> Flow:
    """Lines to a subscriber whose cursor stands at the first message."""
    with dial_text(address) as connection:
        replies = LineReplies()
        started = time.perf_counter()
        count = replies.feed(ask_text(connection, f"SUBSCRIBE|{topic}|{name}\n".encode()))
        while count < messages:
            count += replies.feed(received(connection))
            on_progress(min(count, messages))
        return Flow(messages, time.perf_counter() - started)


def consume_http(address: Address, via: Via, topic: str, offset: int, messages: int, on_progress: OnProgress) -> Flow:
    """One read after the other, each where the one before ended."""
    latencies = Histogram()
    end = offset + messages
    with dial(address) as connection:
        replies = HttpReplies()
        started = time.perf_counter()
        while offset < end:
            asked = time.perf_counter()
            messages_max = min(HTTP_READ_MESSAGES_MAX, end - offset)
            connection.sendall(
                http_read(address, topic, offset, messages_max=messages_max, wait_ms=0, accept=_ACCEPT[via])
            )
            while not replies.feed(received(connection)):
                pass
            latencies.add(time.perf_counter() - asked)
            following = _next_offset(via, replies.last_body, offset)
            if following <= offset:
                raise BenchFailed(f"the broker has nothing at offset {offset}")
            offset = following
            on_progress(min(messages, messages - (end - offset)))
        return Flow(messages, time.perf_counter() - started, latencies)


def _next_offset(via: Via, body: bytes, offset: int) -> int:
    if via is Via.HTTP:
        # The last field of the answer; decoding ten thousand messages for it would be this tool's own cost.
        return int(body[body.rindex(b":") + 1 :].rstrip(b"}"))
    batches = split_batches(body)
    return header(batches[-1]).next_offset if batches else offset

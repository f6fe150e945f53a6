"""Large requests share the event loop with everybody else."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from typing import Any

import pytest

from holdfast.broker.dedupe import DedupeWindow
from holdfast.frontends.http.exchange import BATCHES_TYPE
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import MESSAGES_AT_ONCE_MAX
from holdfast.model.messages import NewMessage
from holdfast.wire.batch_builder import build_batch
from tests.http.http_server import Server

# Twice what may be taken in one turn, and a bit.
MESSAGES = 12_000
SENDERS = 4


def publish(server: Server) -> tuple[str, dict[str, Any]]:
    return "/v1/topics/t/messages", {"messages": [{"value": "x" * 200}] * MESSAGES}


def publish_with_ids(server: Server) -> tuple[str, dict[str, Any]]:
    return "/v1/topics/t/messages", {"messages": [{"value": "x", "id": f"{number}"} for number in range(MESSAGES)]}


def push(server: Server) -> tuple[str, dict[str, Any]]:
    return "/api/v1/push", {"items": [{"queue": "t", "payload": {"a": number}} for number in range(MESSAGES)]}


def publish_batches(server: Server) -> tuple[str, bytes]:
    batch = build_batch([NewMessage(value=b"x", id=f"{number}") for number in range(MESSAGES)], 1_000)
    return "/v1/topics/t/partitions/0/batches", bytes(batch)


@pytest.mark.parametrize("request_of", [publish, publish_with_ids, publish_batches, push])
def test_event_loop_goes_round_between_large_requests_that_come_together(
    server: Server, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("t")
    path, body = request_of(server)
    content_type = "application/json" if isinstance(body, dict) else BATCHES_TYPE
    encoded = json.dumps(body).encode() if isinstance(body, dict) else body
    replica = server.broker.backend.topics_here.replicas[PartitionId(TopicName("t"), 0)]  # type: ignore[attr-defined]
    finished: list[int] = []
    looked_up = 0
    # At each turn: the ids that were looked up, and the messages that were written, so far.
    turns: list[tuple[int, int]] = []
    stored_offset = DedupeWindow.stored_offset

    def count(*args: Any) -> Offset | None:
        nonlocal looked_up
        looked_up += 1
        return stored_offset(*args)

    async def take() -> None:
        turns.append((looked_up, replica.log.written_end))
        await asyncio.sleep(0)
        turns.append((looked_up, replica.log.written_end))

    monkeypatch.setattr(DedupeWindow, "stored_offset", count)
    monkeypatch.setattr(server.broker.turns, "take", take)

    def send() -> None:
        finished.append(server.call("POST", path, encoded, {"content-type": content_type}).status)

    senders = [threading.Thread(target=send) for _ in range(SENDERS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    turns.append((looked_up, replica.log.written_end))
    assert len(finished) == SENDERS and set(finished) <= {200, 201}
    for (looked_up_before, written_before), (looked_up_after, written_after) in itertools.pairwise(turns):
        assert looked_up_after - looked_up_before <= MESSAGES_AT_ONCE_MAX
        assert written_after - written_before <= MESSAGES, "two of the requests were stored in one turn"
    has_same_ids = request_of in (publish_with_ids, publish_batches)
    assert server.broker.partition_range("t", 0)[1] == (MESSAGES if has_same_ids else SENDERS * MESSAGES)

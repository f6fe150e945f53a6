"""Large requests share the event loop with everybody else."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from typing import Any

import pytest
from http_server import Server

from holdfast.model.ids import PartitionId, TopicName

MESSAGES = 40_000


def publish(server: Server) -> tuple[str, dict[str, Any]]:
    return "/v1/topics/t/messages", {"messages": [{"value": "x" * 200}] * MESSAGES}


def publish_with_ids(server: Server) -> tuple[str, dict[str, Any]]:
    return "/v1/topics/t/messages", {"messages": [{"value": "x", "id": f"{number}"} for number in range(MESSAGES)]}


def push(server: Server) -> tuple[str, dict[str, Any]]:
    return "/api/v1/push", {"items": [{"queue": "t", "payload": {"a": number}} for number in range(MESSAGES)]}


@pytest.mark.parametrize("request_of", [publish, publish_with_ids, push])
def test_event_loop_goes_round_between_large_requests_that_come_together(server: Server, request_of: Any) -> None:
    server.create("t")
    path, body = request_of(server)
    encoded = json.dumps(body).encode()
    replica = server.broker.backend.topics_here.replicas[PartitionId(TopicName("t"), 0)]  # type: ignore[attr-defined]
    finished: list[int] = []
    rounds: list[int] = []
    began = threading.Event()

    async def count_rounds() -> None:
        began.set()
        while len(finished) < 6:
            rounds.append(replica.log.written_end)
            await asyncio.sleep(0)

    def send() -> None:
        finished.append(server.call("POST", path, encoded, {"content-type": "application/json"}).status)

    counting = asyncio.run_coroutine_threadsafe(count_rounds(), server.loop)
    began.wait(30)
    senders = [threading.Thread(target=send) for _ in range(6)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    counting.result(60)
    assert set(finished) <= {200, 201}
    # Between any two rounds of the loop one request was written, or two that took less than a hundredth of a second.
    assert max(after - before for before, after in itertools.pairwise(rounds)) <= 2 * MESSAGES
    assert server.broker.partition_range("t", 0)[1] == (MESSAGES if request_of is publish_with_ids else 6 * MESSAGES)

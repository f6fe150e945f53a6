"""A request is answered, refused with the peer's own error, or known to be unanswered; never left hanging."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable

import pytest
from structlog.testing import capture_logs
from testkit.wait import until

from holdfast.model.errors import (
    DamagedData,
    Internal,
    LeaderChanged,
    OffsetOutOfRange,
    RemoteError,
    TooLarge,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.limits import MIB, PEER_REQUESTS_MAX
from holdfast.wire import peer
from tests.cluster.link_nodes import LinkNode, cluster


async def test_requests_are_answered_both_ways_at_once() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        there = [n1.links.request("n2", 3, b"a%d" % number, 5) for number in range(100)]
        back = [n2.links.request("n1", 4, b"b%d" % number, 5) for number in range(100)]
        answers = await asyncio.gather(*there, *back)
        assert [bytes(answer) for answer in answers] == [
            *(b"n1 3 a%d" % number for number in range(100)),
            *(b"n2 4 b%d" % number for number in range(100)),
        ]


async def test_answers_come_as_they_are_ready() -> None:
    async def slow_if_first(node: str, method: int, body: memoryview) -> bytes:
        await asyncio.sleep(0.2 if bytes(body) == b"0" else 0)
        return bytes(body)

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = slow_if_first
        first = asyncio.create_task(_text(n1.links.request("n2", 1, b"0", 5)))
        assert bytes(await n1.links.request("n2", 1, b"1", 5)) == b"1"
        assert not first.done()
        assert await first == b"0"


async def _text(asked: Awaitable[memoryview]) -> bytes:
    return bytes(await asked)


async def test_large_bodies_travel_whole() -> None:
    body = os.urandom(20 * MIB)
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, _):
        answer = await n1.links.request("n2", 1, body, 20)
        assert answer == b"n1 1 " + body


async def test_errors_come_out_as_what_they_were() -> None:
    raised = [
        TopicNotFound("no topic x"),
        OffsetOutOfRange("there is no 5"),
        DamagedData("broken", 42),
        Unavailable("not now"),
        RemoteError("from_the_future", "why"),
    ]

    async def refuse(node: str, method: int, body: memoryview) -> bytes:
        raise raised[method]

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = refuse
        for method, error in enumerate(raised):
            with pytest.raises(type(error)) as caught:
                await n1.links.request("n2", method, b"", 5)
            assert type(caught.value) is type(error)
            assert (caught.value.code, caught.value.message) == (error.code, error.message)
            assert vars(caught.value) == vars(error)
        assert n1.links.is_up("n2")


async def test_bug_in_a_handler_is_logged_there_and_told_without_its_details() -> None:
    async def fail(node: str, method: int, body: memoryview) -> bytes:
        raise KeyError("secret")

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = fail
        with capture_logs() as logs, pytest.raises(Internal) as caught:
            await n1.links.request("n2", 9, b"", 5)
        assert "secret" not in caught.value.message
        (line,) = [line for line in logs if line["event"] == "peer_request_failed"]
        assert (line["peer"], line["method"]) == ("n1", 9)
        assert n1.links.is_up("n2")


async def test_request_whose_answer_is_too_large_is_not_called_refused() -> None:
    """It is done: whoever is told that it was refused does it again."""

    async def boast(node: str, method: int, body: memoryview) -> bytes:
        return bytes(peer.BODY_BYTES_MAX + 1)

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = boast
        with pytest.raises(Internal, match="an answer that is too large"):
            await n1.links.request("n2", 1, b"", 10)
        with pytest.raises(TooLarge):
            await n1.links.request("n2", 1, bytes(peer.BODY_BYTES_MAX + 1), 10)


async def test_request_without_an_answer_ends_in_time_and_a_late_answer_does_no_harm() -> None:
    async def slow(node: str, method: int, body: memoryview) -> bytes:
        await asyncio.sleep(0.15)
        return b"late"

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = slow
        with pytest.raises(Unavailable, match=r"n2 did not answer within 0\.05 s"):
            await n1.links.request("n2", 1, b"", 0.05)
        await asyncio.sleep(0.2)
        assert bytes(await n1.links.request("n2", 1, b"", 5)) == b"late"
        assert n1.events == [("up", "n2")]


async def test_requests_fail_at_once_when_the_link_breaks() -> None:
    cancelled = []

    async def hang(node: str, method: int, body: memoryview) -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(method)
            raise
        return b""

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = hang
        asked = [asyncio.create_task(n1.links.request("n2", method, b"", 30)) for method in range(3)]
        accepted = n2.links.accepted
        await until(lambda: "n1" in accepted and len(accepted["n1"][1].answering) == 3, "n2 works on them")
        await asyncio.sleep(0.01)
        await n2.links.stop()
        for task in asked:
            with pytest.raises(Unavailable, match="n2 broke"):
                await asyncio.wait_for(task, 20)
        assert sorted(cancelled) == [0, 1, 2]
        with pytest.raises(Unavailable, match="no link to n2"):
            await n1.links.request("n2", 1, b"", 5)
    with pytest.raises(Unavailable, match="no link to n7"):
        await n1.links.request("n7", 1, b"", 5)


async def test_nobody_can_be_asked_more_than_it_can_hold() -> None:
    go = asyncio.Event()

    async def wait(node: str, method: int, body: memoryview) -> bytes:
        await go.wait()
        return b"done"

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = wait
        asked = [asyncio.create_task(n1.links.request("n2", 1, b"", 30)) for _ in range(PEER_REQUESTS_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="requests to answer"):
            await n1.links.request("n2", 1, b"", 30)
        accepted = n2.links.accepted["n1"][1]
        await until(lambda: len(accepted.answering) == PEER_REQUESTS_MAX, "all are under way")
        go.set()
        assert {bytes(answer) for answer in await asyncio.gather(*asked)} == {b"done"}


async def test_caller_that_asks_too_much_all_the_same_is_not_read() -> None:
    go = asyncio.Event()

    async def wait(node: str, method: int, body: memoryview) -> bytes:
        await go.wait()
        return b"done"

    n1 = LinkNode("n1")
    n1.answer = wait
    async with cluster(n1):
        reader, writer = await asyncio.open_connection("127.0.0.1", n1.port)
        said = LinkNode("n9").said
        asked = b"".join(b"".join(peer.request_frame(number, 1, b"x")) for number in range(5000))
        writer.write(peer.hello_frame(said) + asked)
        await until(lambda: "n9" in n1.links.accepted, "n9 is known")
        accepted = n1.links.accepted["n9"][1]
        await until(lambda: not accepted.is_reading, "n9 is not read any more")
        assert len(accepted.answering) == PEER_REQUESTS_MAX
        go.set()
        head = await reader.readexactly(peer.HEAD_BYTES)
        await reader.readexactly(peer.read_head(memoryview(head), 0)[1])
        replies = await asyncio.wait_for(reader.readexactly(5000 * (peer.HEAD_BYTES + 9 + 4)), 60)
        assert replies.count(b"done") == 5000
        writer.close()
        await writer.wait_closed()


async def test_request_to_a_leader_that_hangs_ends_when_another_node_leads() -> None:
    asked, leads = asyncio.Event(), True

    async def hang(node: str, method: int, body: memoryview) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = hang
        ends = asyncio.create_task(_text(n1.links.request("n2", 1, b"", 60, lambda: leads)))
        waits = asyncio.create_task(_text(n1.links.request("n2", 1, b"", 60, lambda: True)))
        await asked.wait()
        leads = False
        with pytest.raises(LeaderChanged):
            await ends
        # Its link is as it was, and nothing else is given up.
        assert n1.links.is_up("n2") and not waits.done()
        waits.cancel()


async def test_answer_of_a_leader_that_hands_over_is_still_heard() -> None:
    leads = True

    async def hand_over_and_answer(node: str, method: int, body: memoryview) -> bytes:
        nonlocal leads
        leads = False
        await asyncio.sleep(0.05)
        return b"stored"

    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        n2.answer = hand_over_and_answer
        assert await _text(n1.links.request("n2", 1, b"", 60, lambda: leads)) == b"stored"

"""Nodes that should not talk to each other do not, and the operator of either can read why, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs
from testkit.wait import until

from holdfast.consensus.messages import TimeoutNow
from holdfast.model.ids import Term
from holdfast.wire import peer
from holdfast.wire.peer_raft import raft_frame
from tests.cluster.link_nodes import QUICK, LinkNode, cluster

Line = MutableMapping[str, Any]


def reasons(logs: list[Line], event: str) -> list[str]:
    return [line["reason"] for line in logs if line["event"] == event]


async def refused(n1: LinkNode, n2: LinkNode) -> list[Line]:
    """What is logged where n1 wants to talk to n2, and n2 knows nothing of it."""
    with capture_logs() as logs:
        await n2.start()
        await n1.start(n2)
        await until(lambda: bool(reasons(logs, "peer_refused") and reasons(logs, "peer_refused_us")), "both say it")
        # Long enough for many more tries.
        await asyncio.sleep(0.2)
        assert not n1.links.is_up(n2.node)
        assert n1.events == n2.events == []
        n1.links.send(n2.node, 1, TimeoutNow(Term(1)))
        await asyncio.sleep(0.01)
        assert n2.heard == []
        await n1.links.stop()
        await n2.links.stop()
    return logs


def assert_both_say(logs: list[Line], reason: str) -> None:
    assert reasons(logs, "peer_refused") == [reason]
    assert reasons(logs, "peer_refused_us") == [reason]


async def test_node_of_another_cluster_is_refused() -> None:
    logs = await refused(LinkNode("n1"), LinkNode("n2", cluster="c2"))
    assert_both_say(logs, "n1 belongs to the cluster c1, n2 to c2")


async def test_node_of_another_version_is_refused() -> None:
    logs = await refused(LinkNode("n1", version=2), LinkNode("n2"))
    what_to_do = "upgrade n2, one release after the other"
    assert_both_say(logs, f"n1 speaks version 2 of the protocol between nodes, n2 version 1; {what_to_do}")


async def test_nodes_of_two_versions_talk_in_the_highest_that_both_speak() -> None:
    async with cluster(LinkNode("n1", version=3, oldest=1), LinkNode("n2", version=1)) as (n1, n2):
        assert bytes(await n1.links.request("n2", 1, b"old", 5.0)) == b"n1 1 old"
        assert bytes(await n2.links.request("n1", 1, b"new", 5.0)) == b"n2 1 new"
        n1.links.send("n2", 7, TimeoutNow(Term(1)))
        await until(lambda: bool(n2.heard), "a message arrives")
    async with cluster(LinkNode("n1", version=4, oldest=2), LinkNode("n2", version=3, oldest=1)) as (n1, n2):
        assert bytes(await n1.links.request("n2", 1, b"3", 5.0)) == b"n1 1 3"


async def frame_of(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Version, kind and body of what comes next."""
    length, version, kind = struct.unpack(">IBB", await asyncio.wait_for(reader.readexactly(6), 60))
    return version, kind, await reader.readexactly(length - 2)


async def test_every_byte_to_an_older_node_is_of_the_version_that_both_speak() -> None:
    n1, old = LinkNode("n1", version=3, oldest=1), LinkNode("n2", version=2, oldest=1)
    heard: list[tuple[int, int]] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An older node that is called."""
        await frame_of(reader)
        writer.write(peer.hello_frame(old.said))
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                version, kind, body = await frame_of(reader)
                heard.append((version, kind))
                if kind == peer.REQUEST:
                    number, _, _ = peer.decode_request(memoryview(body))
                    writer.writelines(peer.reply_frame(number, peer.OK, b"", 2))
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", old.port)
    await n1.start(old)
    await n1.up(old)
    n1.links.send("n2", 7, TimeoutNow(Term(1)))
    await n1.links.request("n2", 1, b"", 5.0)
    assert {kind for _, kind in heard} == {peer.RAFT, peer.REQUEST} and {version for version, _ in heard} == {2}

    # An older node that calls.
    reader, writer = await asyncio.open_connection("127.0.0.1", n1.port)
    writer.write(peer.hello_frame(old.said))
    assert (await frame_of(reader))[1] == peer.HELLO
    writer.writelines(peer.request_frame(1, 1, b"", 2))
    assert (await frame_of(reader))[:2] == (2, peer.REPLY)
    writer.writelines(peer.request_frame(2, 1, b"", 3))
    assert b"a REQUEST of protocol version 3 where 2 is spoken" in (await frame_of(reader))[2]
    writer.close()
    await n1.links.stop()
    server.close()
    await server.wait_closed()


async def test_node_that_nobody_knows_is_refused() -> None:
    n1, n2 = LinkNode("n1"), LinkNode("n2")
    n2.unwanted["n1"] = "n1 is no member of this cluster; let it in with: holdfast cluster add"
    assert_both_say(await refused(n1, n2), n2.unwanted["n1"])


async def test_caller_may_refuse_too() -> None:
    n1, n2 = LinkNode("n1"), LinkNode("n2")
    n1.unwanted["n2"] = "n2 was removed"
    assert_both_say(await refused(n1, n2), "n2 was removed")


async def test_second_node_of_the_same_name_is_refused() -> None:
    n2 = LinkNode("n2")
    double = LinkNode("n2")
    with capture_logs() as logs:
        async with cluster(n2):
            _, writer = await asyncio.open_connection("127.0.0.1", n2.port)
            writer.write(peer.hello_frame(double.said))
            await until(lambda: bool(logs), "it is said")
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert reasons(logs, "peer_refused") == ["two nodes go by the name n2; give one of them another with --node"]


async def test_node_without_a_cluster_may_talk_to_one_that_has_one() -> None:
    async with cluster(LinkNode("n1", cluster=""), LinkNode("n2", cluster="c2")) as (n1, n2):
        assert n1.links.hello_of("n2") == n2.said


async def test_wrong_node_at_an_address_is_refused_and_disturbs_nobody() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n3")) as (n1, n3):
        with capture_logs() as logs:
            n1.links.set_peers({"n2": n3.address, "n3": n3.address})
            await until(lambda: bool(reasons(logs, "peer_refused_us")), "both say it")
            await asyncio.sleep(0.2)
        assert_both_say(logs, f"n1 looks for n2 at {n3.address}, but n3 answers")
        assert n1.events == [("up", "n3")]
        assert n3.events == [("up", "n1")]


async def test_own_address_is_refused() -> None:
    n1 = LinkNode("n1")
    with capture_logs() as logs:
        async with cluster(n1):
            n1.links.set_peers({"n1": n1.address, "n2": n1.address})
            await until(lambda: bool(reasons(logs, "peer_refused_us")), "it is said")
    assert reasons(logs, "peer_refused") == ["n1 has connected to itself"]


async def test_peer_that_is_refused_is_welcome_when_the_reason_is_gone() -> None:
    n1, n2 = LinkNode("n1"), LinkNode("n2")
    n2.unwanted["n1"] = "not yet"
    await n2.start()
    await n1.start(n2)
    with capture_logs() as logs:
        await until(lambda: bool(reasons(logs, "peer_refused")), "it is refused")
        n2.unwanted.clear()
        await n1.up(n2)
    await n1.links.stop()
    await n2.links.stop()


async def test_peer_that_has_refused_and_then_connects_is_looked_for_at_once() -> None:
    """Whoever a newcomer asks looks for it at once, and may be too early: the newcomer does not know it yet."""
    node, newcomer = LinkNode("n1", QUICK._replace(refused_retry_s=600.0)), LinkNode("n2")
    newcomer.unwanted["n1"] = "n2 knows nobody yet"
    try:
        await newcomer.start()
        with capture_logs() as logs:
            await node.start(newcomer)
            await until(lambda: any(entry["event"] == "peer_refused_us" for entry in logs), "n1 is refused")
        newcomer.unwanted.clear()
        newcomer.know(node)
        await node.up(newcomer)
    finally:
        await node.links.stop()
        await newcomer.links.stop()


async def test_peer_that_cannot_be_reached_is_logged_once() -> None:
    n1, n2 = LinkNode("n1"), LinkNode("n2")
    with capture_logs() as logs:
        await n1.start(n2)
        await asyncio.sleep(0.2)
        await n1.links.stop()
    assert [line["event"] for line in logs] == ["peer_unreachable"]


async def test_host_that_does_not_answer_with_a_hello_is_given_up_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    n1, n2 = LinkNode("n1", QUICK._replace(hello_s=0.1)), LinkNode("n2")
    server = await asyncio.start_server(silent, "127.0.0.1", n2.port)
    with capture_logs() as logs:
        await n1.start(n2)
        await until(lambda: bool(reasons(logs, "peer_unreachable")), "it is said")
        await asyncio.sleep(0.2)
        await n1.links.stop()
    server.close()
    await server.wait_closed()
    assert reasons(logs, "peer_unreachable") == ["no HELLO within 0.1 s"]


HELLO = peer.hello_frame(LinkNode("n9").said)


def speaking(**versions: int) -> bytes:
    """A HELLO of a node that says something odd of its versions."""
    body = json.dumps({"cluster": "c1", "node": "n9", "life": "1", "boot": "b", **versions}).encode()
    return peer.frame_head(peer.HELLO, len(body)) + body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "is this a node of a cluster?"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is an HTTP port"),
        (b"".join(raft_frame([])), "the first frame is not a HELLO"),
        (peer.frame_head(peer.HELLO, 2) + b"{}", "not a HELLO"),
        (speaking(version=1, oldest=5), "which are none"),
        (speaking(version=99999999999999999999, oldest=2), "not a HELLO"),
        (speaking(version=256), "not a HELLO"),
        (speaking(version=-3, oldest=-9), "not a HELLO"),
        (speaking(version=2, oldest=-9), "not a HELLO"),
        (peer.frame_head(peer.HELLO, 1 << 20), "not 1048578"),
        (HELLO + HELLO, "a frame of kind 1 from a caller"),
        (HELLO + peer.frame_head(peer.RAFT, 3) + b"abc", "ends within a message"),
        (HELLO + peer.frame_head(peer.REQUEST, 3) + b"abc", "at least 9 bytes"),
    ],
)
async def test_garbage_is_answered_with_a_reason_and_the_connection_closed(data: bytes, why: str) -> None:
    n1 = LinkNode("n1")
    with capture_logs() as logs:
        async with cluster(n1):
            reader, writer = await asyncio.open_connection("127.0.0.1", n1.port)
            writer.write(data)
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert why.encode() in answer
            assert not n1.links.accepted
            assert not n1.links.strangers
    assert any(why in reason for reason in reasons(logs, "peer_refused"))


async def test_reply_that_nobody_asked_for_ends_the_link() -> None:
    n1, n2 = LinkNode("n1"), LinkNode("n2")

    async def confused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines([peer.hello_frame(n2.said), *peer.reply_frame(77, peer.OK, b"")])
        await reader.read()
        writer.close()

    server = await asyncio.start_server(confused, "127.0.0.1", n2.port)
    with capture_logs() as logs:
        await n1.start(n2)
        await until(lambda: ("down", "n2") in n1.events, "the link is given up")
        await n1.links.stop()
    server.close()
    await server.wait_closed()
    assert "a REPLY to request 77, which waits for none" in reasons(logs, "peer_refused")

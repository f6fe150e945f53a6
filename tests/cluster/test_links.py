"""Nodes find each other, lose each other and find each other again; what they send arrives whole and in order."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial

import pytest
from testkit.wait import until

from holdfast.backends.cluster.links import LinkTiming
from holdfast.consensus.messages import Append, Message, TimeoutNow
from holdfast.model.entries import Entry
from holdfast.model.errors import BadValue
from holdfast.model.ids import LogIndex, Term
from holdfast.model.limits import MIB
from tests.cluster.link_nodes import QUICK, LinkNode, cluster


def append(*payloads: bytes) -> Append:
    return Append(Term(1), LogIndex(0), Term(1), LogIndex(-1), [Entry(Term(1), 1, payload) for payload in payloads])


def timeout_now(term: int) -> TimeoutNow:
    return TimeoutNow(Term(term))


def payloads_of(message: Message) -> list[bytes]:
    assert isinstance(message, Append)
    return [bytes(entry.payload) for entry in message.entries]


def has_heard(node: LinkNode, count: int) -> bool:
    return len(node.heard) == count


async def test_three_nodes_reach_each_other() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2"), LinkNode("n3")) as nodes:
        for one in nodes:
            for other in nodes:
                if one is not other:
                    assert one.links.hello_of(other.node) == other.said
                    one.links.send(other.node, 7, timeout_now(3))
        for node in nodes:
            await until(partial(has_heard, node, 2), "a message from both")
            assert {name for name, _, _ in node.heard} == {"n1", "n2", "n3"} - {node.node}
            assert sorted(node.events) == sorted(("up", name) for name in {"n1", "n2", "n3"} - {node.node})


async def test_what_one_turn_sends_leaves_as_one_frame_in_order() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        for turn in range(5):
            for number in range(200):
                n1.links.send("n2", number, timeout_now(turn))
            await asyncio.sleep(0.01)
        await until(lambda: len(n2.heard) == 1000, "all messages")
        assert n2.frames == [200] * 5
        assert n2.heard == [("n1", number, timeout_now(turn)) for turn in range(5) for number in range(200)]


async def test_large_and_small_payloads_arrive_whole_and_stay_whole() -> None:
    sizes = [0, 1, 100, 5000, 70_000, 262_144, 262_138, 300_000, 1 * MIB, 5 * MIB, 3, 16 * MIB, 10, 1000, 200_000]
    payloads = [os.urandom(size) for size in sizes * 2]
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        for number, payload in enumerate(payloads):
            n1.links.send("n2", number, append(payload, b"small", payload[:50]))
            if number % 3 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(n2.heard) == len(payloads), "all messages")
        # Nothing that came later was written over what came before.
        for number, (_, group, message) in enumerate(n2.heard):
            assert group == number
            assert payloads_of(message) == [payloads[number], b"small", payloads[number][:50]]
        assert n1.links.dropped_messages == 0


async def test_many_frames_of_all_sizes_stay_whole() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        sent = []
        for number in range(3000):
            payload = bytes([number % 251]) * ((number * 7919) % 9000)
            sent.append(payload)
            n1.links.send("n2", number, append(payload))
            if number % 2:
                await asyncio.sleep(0)
        await until(lambda: len(n2.heard) == len(sent), "all messages")
        assert [payloads_of(message) for _, _, message in n2.heard] == [[each] for each in sent]


async def test_lost_node_is_noticed_at_once_and_found_again_on_the_same_port() -> None:
    n1, n2 = LinkNode("n1", QUICK._replace(silence_s=600.0)), LinkNode("n2")
    async with cluster(n1, n2):
        await n2.links.stop()
        await until(lambda: n1.events[-1] == ("down", "n2"), "n1 notices")
        assert not n1.links.is_up("n2")
        assert n1.links.hello_of("n2") is None
        before = n1.links.dropped_messages
        n1.links.send("n2", 1, timeout_now(1))
        assert n1.links.dropped_messages == before + 1
        again = LinkNode("n2", port=n2.port)
        async with cluster(again):
            again.know(n1)
            await n1.up(again)
            await again.up(n1)
            assert n1.links.hello_of("n2") == again.said
            n1.links.send("n2", 1, timeout_now(9))
            await until(lambda: again.heard == [("n1", 1, timeout_now(9))], "a message to the new process")
        assert n1.events[:3] == [("up", "n2"), ("down", "n2"), ("up", "n2")]


async def test_new_process_takes_the_place_of_one_that_vanished_without_a_word() -> None:
    n1, n2 = LinkNode("n1"), LinkNode("n2")
    async with cluster(n1, n2):
        # The old one is still there, as seen from n1; the new one listens elsewhere.
        new = LinkNode("n2")
        await new.start(n1)
        await until(lambda: ("down", "n2") in n1.events, "the old one is given up")
        n1.know(new)
        await n2.links.stop()
        await n1.up(new)
        await new.up(n1)
        n1.links.send("n2", 1, timeout_now(9))
        await until(lambda: new.heard == [("n1", 1, timeout_now(9))], "a message to the new process")
        await new.links.stop()


async def test_loss_of_one_connection_is_healed_without_flapping() -> None:
    timing = QUICK._replace(keepalive_s=0.02)
    async with cluster(LinkNode("n1", timing), LinkNode("n2", timing)) as (n1, n2):
        connection = n1.links.dialed["n2"].up
        assert connection is not None
        connection.abort()
        await until(lambda: ("down", "n2") in n1.events and ("down", "n1") in n2.events, "both notice")
        await n1.up(n2)
        await n2.up(n1)
        heard = len(n1.heard_at["n2"])
        await until(lambda: len(n1.heard_at["n2"]) > heard + 10, "more keepalives")
        assert n1.events == [("up", "n2"), ("down", "n2"), ("up", "n2")]
        assert n2.events == [("up", "n1"), ("down", "n1"), ("up", "n1")]


async def test_silent_links_stay_alive_by_keepalives() -> None:
    timing = QUICK._replace(keepalive_s=0.02, silence_s=0.3)
    async with cluster(LinkNode("n1", timing), LinkNode("n2", timing)) as (n1, n2):
        await until(lambda: len(n1.heard_at["n2"]) > 40, "keepalives for twice the time of silence that ends a link")
        assert n1.events == [("up", "n2")]
        assert n2.heard == []


async def test_peer_that_falls_silent_is_given_up() -> None:
    quiet = QUICK._replace(keepalive_s=60.0)
    n1, n2 = LinkNode("n1", QUICK._replace(silence_s=0.3)), LinkNode("n2", quiet)
    async with cluster(n1, n2):
        await until(lambda: ("down", "n2") in n1.events, "n1 gives up")


async def test_peer_that_is_no_longer_wanted_is_left() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, _):
        n1.links.set_peers({})
        assert n1.events == [("up", "n2"), ("down", "n2")]
        assert not n1.links.is_up("n2")


async def test_bad_address_is_refused_and_changes_nothing() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        for address in ("n3", "n3:", ":1", "n3:0", "n3:99999", "n3:²"):
            with pytest.raises(BadValue, match="host:port"):
                n1.links.set_peers({"n2": n2.address, "n3": address})
        assert n1.links.is_up("n2")


async def test_slow_reader_makes_messages_be_dropped_and_is_told_when_there_is_room() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        await until(lambda: "n1" in n2.links.accepted, "n1 is known")
        (_, accepted) = n2.links.accepted["n1"]
        accepted.set_reading(False)
        n1.links.send("n2", 7, timeout_now(1))
        for _ in range(50):
            n1.links.send("n2", 1, append(bytes(4 * MIB)))
            await asyncio.sleep(0)
        assert n1.links.dropped_messages > 0
        assert ("dropped", "n2") not in n1.events
        connection = n1.links.dialed["n2"].up
        assert connection is not None and 32 * MIB < connection.unsent_bytes <= 72 * MIB
        kept = 51 - n1.links.dropped_messages
        n1.links.send("n2", 5, timeout_now(1))
        accepted.set_reading(True)
        await until(lambda: ("dropped", "n2") in n1.events, "room again")
        n1.links.send("n2", 2, timeout_now(1))
        await until(lambda: len(n2.heard) == kept + 1, "what was kept, then what came after")
        assert n2.heard[-1] == ("n1", 2, timeout_now(1))
        assert n1.dropped_groups == [{1, 5}], "told once, and of the groups that lost something"


async def test_too_much_in_one_turn_is_dropped_and_told_after_it() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        for _ in range(40):
            n1.links.send("n2", 1, append(bytes(4 * MIB)))
        assert n1.links.dropped_messages > 0
        kept = 40 - n1.links.dropped_messages
        await until(lambda: n1.events[-1] == ("dropped", "n2"), "room again")
        await until(lambda: len(n2.heard) == kept, "what was kept")
        assert max(n2.frames) < 4


async def test_connection_that_says_nothing_is_closed_and_there_are_never_many() -> None:
    n1 = LinkNode("n1", LinkTiming(hello_s=0.5))
    async with cluster(n1):
        loop = asyncio.get_running_loop()
        silent = []
        for _ in range(100):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", n1.port))
            silent.append(sock)
        await until(lambda: len(n1.links.strangers) == 64, "as many as may be")
        last = await asyncio.wait_for(asyncio.gather(*(_rest(sock) for sock in silent)), 60)
        assert sum(b"no HELLO within 0.5 s" in words for words in last) == 64
        assert not n1.links.strangers


async def _rest(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    words = b""
    with sock:
        try:
            while data := await loop.sock_recv(sock, 1000):
                words += data
        except ConnectionResetError:
            pass
    return words


async def test_bug_in_a_handler_of_messages_is_loud_and_costs_the_link_not_the_node() -> None:
    async with cluster(LinkNode("n1"), LinkNode("n2")) as (n1, n2):
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: problems.append(facts["exception"]))
        bug = KeyError("a bug")
        n2.bugs.append(bug)
        n1.links.send("n2", 1, timeout_now(1))
        await until(lambda: ("down", "n2") in n1.events, "the link is lost")
        assert problems == [bug]
        await n1.up(n2)
        n1.links.send("n2", 1, timeout_now(2))
        await until(lambda: n2.heard == [("n1", 1, timeout_now(2))], "the next message")


async def test_who_was_there_just_now_is_looked_for_at_once() -> None:
    """However long it had taken to find: of a pair, the other one takes over as soon as nobody is there."""
    a, b = LinkNode("a", LinkTiming(retry_min_s=0.02, retry_max_s=600.0)), LinkNode("b")
    try:
        await a.start(b)
        await until(lambda: len(a.nobody_there) == 8, "eight tries")  # the next one would be in 2.5 s or more
        await b.start(a)
        await a.up(b)
        await b.links.stop()
        tries = len(a.nobody_there)
        await until(lambda: len(a.nobody_there) > tries, "one more try", timeout_s=2.0)
    finally:
        await a.links.stop()
        await b.links.stop()

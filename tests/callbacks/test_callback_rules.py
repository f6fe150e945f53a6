"""What is under way to a receiver, what lines say, and who keeps subscriptions."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.inprocess import Nodes
from testkit.processes import BrokerProcess
from testkit.wait import PATIENCE_S

from holdfast.backends.cluster.callback_table import ClusterCallbacks
from holdfast.broker.callback_addresses import CallbackPolicy
from holdfast.broker.callback_window import Budget, Window
from holdfast.frontends.callbacks.dialing import is_connected_to_itself
from holdfast.model.errors import BadCommand, NotSupported, SubscriptionNotFound
from holdfast.model.ids import Offset
from holdfast.model.limits import CALLBACK_WINDOW_BYTES_MAX
from holdfast.testing.ports import free_port
from holdfast.wire.callbacks import count_acks, parse_messages

GUIDE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text("utf-8")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=6), st.data())
def test_a_place_is_behind_exactly_what_was_acknowledged(sent: list[tuple[int, int]], data: st.DataObject) -> None:
    window, ends, order = Window(Budget()), {0: 0, 1: 0, 2: 0}, []
    for partition, count in sent:
        first, ends[partition] = ends[partition], ends[partition] + count
        window.sent(partition, Offset(first), Offset(ends[partition]), count, 10 * count)
        order += [(partition, offset) for offset in range(first, ends[partition])]
    places: dict[int, int] = {}
    done = 0
    while done < len(order):
        count = data.draw(st.integers(1, len(order) - done))
        places.update(window.acknowledged(count))
        done += count
        expected = {}
        for partition, offset in order[:done]:
            expected[partition] = offset + 1
        assert places == expected
    assert (window.messages, window.size) == (0, 0)


def test_nothing_is_acknowledged_that_was_not_sent() -> None:
    window = Window(Budget())
    window.sent(0, Offset(5), Offset(8), 3, 30)
    with pytest.raises(BadCommand, match="4 messages, and 3"):
        window.acknowledged(4)
    assert window.acknowledged(3) == {0: 8}
    with pytest.raises(BadCommand):
        window.acknowledged(1)


def test_where_offsets_have_gaps_a_place_moves_only_behind_whole_deliveries() -> None:
    window = Window(Budget())
    window.sent(0, Offset(0), Offset(10), 4, 40)
    window.sent(0, Offset(10), Offset(20), 0, 0)
    assert window.acknowledged(3) == {}
    assert window.acknowledged(1) == {0: 20}


def test_no_more_is_sent_than_the_window_holds() -> None:
    window = Window(Budget())
    window.sent(0, Offset(0), Offset(1), 1, CALLBACK_WINDOW_BYTES_MAX)
    assert not window.has_room
    window.acknowledged(1)
    assert window.has_room


@given(st.lists(st.one_of(st.none(), st.integers(1, 10**9)), min_size=1, max_size=6), st.sampled_from([b"\n", b"\r\n"]))
def test_acknowledgements_of_all_kinds_add_up(counts: list[int | None], ending: bytes) -> None:
    lines = b"".join((b"ACK" if count is None else b"ACK|%d" % count) + ending for count in counts)
    assert count_acks(lines, len(counts)) == sum(count or 1 for count in counts)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_shown_only_in_part(garbage: bytes) -> None:
    for parse in (partial(count_acks, lines_max=1000), parse_messages):
        try:
            parse(b"?" + garbage + b"\n")
        except BadCommand as error:
            assert error.message.isprintable() and len(error.message) < 400
        else:
            pytest.fail("that is neither an acknowledgement nor a message")


async def test_a_subscription_is_known_on_every_node_and_survives_the_one_it_was_made_on(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    try:
        policy = CallbackPolicy(["127.0.0.0/8"], port_min=1024, is_local=False)
        with pytest.raises(NotSupported, match="subscribe over a connection"):
            await nodes.brokers["n1"].callbacks.subscribe("orders", "127.0.0.1:9000")
        for name, broker in nodes.brokers.items():
            broker.callbacks.serve(ClusterCallbacks(nodes.backends[name]), policy)
        made = await nodes.brokers["n1"].callbacks.subscribe("orders", "127.0.0.1:9000", name="billing")
        await nodes.stop("n1")
        (found,) = await nodes.brokers["n2"].callbacks.describe()
        assert (found.topic, found.name, found.callback) == ("orders", "billing", made.callback)
        await nodes.brokers["n3"].callbacks.unsubscribe("orders", "billing")
        assert await nodes.brokers["n2"].callbacks.describe("orders") == []
        with pytest.raises(SubscriptionNotFound):
            await nodes.brokers["n2"].callbacks.unsubscribe("orders", "billing")
        await nodes.start("n1")
        async with asyncio.timeout(PATIENCE_S):
            while nodes.backends["n1"].state.callbacks.known or nodes.backends["n1"].cursors():
                await asyncio.sleep(0.01)
    finally:
        await nodes.stop()


def test_the_receiver_in_the_guide_works(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    port = free_port()
    command = [sys.executable, "-c", script.replace("9000", str(port))]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as receiver,
        BrokerProcess(tmp_path / "data") as broker,
        broker.connect() as client,
    ):
        patience = threading.Timer(PATIENCE_S, receiver.kill)
        patience.start()
        assert receiver.stdout is not None
        client.say(f"SUBSCRIBE_CALLBACK|orders|127.0.0.1:{port}".encode(), b"PUBLISH|orders|one", b"PUBLISH|orders|two")
        assert [receiver.stdout.readline() for _ in range(2)] == [b"orders one\n", b"orders two\n"]
        patience.cancel()
        receiver.kill()


def test_a_socket_that_found_only_itself_is_no_connection_to_a_receiver() -> None:
    """As happens where a port that the system gives to clients is tried again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as alone, socket.socket() as well:
        alone.bind(("127.0.0.1", free_port()))
        alone.connect(alone.getsockname())
        well.connect(listening.getsockname())
        assert is_connected_to_itself(alone)
        assert not is_connected_to_itself(well)

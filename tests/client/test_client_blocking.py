"""The client without await: in scripts, in threads, inside somebody else's event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from testkit.processes import BrokerProcess

import holdfast
from holdfast.client import ClientClosed, ConnectionLost, RemoteError, WrongPort
from holdfast.testing.ports import free_port


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-client"]


def test_a_script_publishes_reads_and_acknowledges(shared_broker: BrokerProcess, topic: str) -> None:
    with holdfast.connect_blocking(shared_broker.url) as broker:
        assert broker.publish(topic, {"n": 0}, key="k").offset == 0
        assert [each.offset for each in broker.publish_many(topic, ["1", "2"])] == [1, 2]
        assert [message.text for message in broker.read(topic)] == ['{"n":0}', "1", "2"]
        with broker.subscribe(topic, name="script", start="earliest") as messages:
            for message in messages:
                assert message.ack()
                if message.text == "2":
                    break
            assert messages.get(timeout_s=0.1) is None
        assert broker.cursor(topic, "script").lag == 0
        with pytest.raises(ClientClosed):
            messages.get()
    assert loop_threads() == []


def test_a_subscription_without_with_is_ended_by_its_client(shared_broker: BrokerProcess, topic: str) -> None:
    broker = holdfast.connect_blocking(shared_broker.url)
    broker.publish_many(topic, [b"%d" % number for number in range(2500)])
    found = []
    for message in broker.subscribe(topic, name="script", start="earliest"):
        found.append(message.offset)
        if len(found) == 2000:
            message.ack_soon()
            break
    broker.close()
    broker.close()
    assert found == list(range(2000))
    with pytest.raises(ClientClosed):
        broker.publish(topic, "v")
    with holdfast.connect_blocking(shared_broker.url) as broker:
        assert broker.cursor(topic, "script").lag == 2500, "one message in the middle moves nothing"


def test_acknowledging_everything_leaves_what_was_only_fetched(shared_broker: BrokerProcess, topic: str) -> None:
    with holdfast.connect_blocking(shared_broker.url) as broker:
        broker.publish_many(topic, [b"v"] * 100)
        with broker.subscribe(topic, name="script", start="earliest") as messages:
            assert len(messages.take(10, timeout_s=60)) == 10
            messages.ack_all()
            assert broker.cursor(topic, "script").lag == 90


async def test_it_works_inside_a_running_loop(shared_broker: BrokerProcess, topic: str) -> None:
    with holdfast.connect_blocking(shared_broker.url) as broker:
        assert broker.publish(topic, "from a notebook").offset == 0
        await asyncio.sleep(0)
        assert broker.describe(topic).messages == 1


def test_threads_share_one_client(shared_broker: BrokerProcess, topic: str) -> None:
    with holdfast.connect_blocking(shared_broker.url) as broker, ThreadPoolExecutor(16) as threads:
        offsets = list(threads.map(lambda number: broker.publish(topic, str(number)).offset, range(400)))
        assert sorted(offsets) == list(range(400))


def test_everything_else_is_there_too(shared_broker: BrokerProcess, topic: str) -> None:
    with holdfast.connect_blocking(shared_broker.url) as broker:
        assert broker.info().node
        assert len(broker.create_topic(topic, partitions=2).partitions) == 2
        assert topic in [each.topic for each in broker.topics()]
        assert broker.offset_at(topic, "latest", 1) == 0
        assert broker.seek(topic, "reader", "earliest").lag == 0
        assert [each.name for each in broker.cursors(topic)] == ["reader"]
        broker.delete_cursor(topic, "reader")
        broker.delete_topic(topic)
        with pytest.raises(RemoteError):
            broker.describe(topic)


def test_it_has_every_method_of_the_client() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(holdfast.Client) == methods(holdfast.BlockingClient)


def test_no_broker_or_the_wrong_port_is_an_error_at_once_and_leaves_no_thread(shared_broker: BrokerProcess) -> None:
    before = loop_threads()
    with pytest.raises(ConnectionLost):
        holdfast.connect_blocking(f"127.0.0.1:{free_port()}", timeout_s=0.2)
    with pytest.raises(WrongPort):
        holdfast.connect_blocking(shared_broker.text)
    assert set(loop_threads()) <= set(before)

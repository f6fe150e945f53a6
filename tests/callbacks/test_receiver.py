"""The Python receiver: each message once and in order, whatever connections come and go."""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.commands import holdfast, holdfast_process
from testkit.processes import BrokerProcess
from testkit.serving import Serving, Talk, address_of
from testkit.wait import until, wait_until

from holdfast.client import BlockingReceiver, Receiver, connect_blocking
from holdfast.client.receiver import _Seen
from holdfast.model.callbacks import CallbackDescription
from holdfast.model.errors import ConfigError
from holdfast.testing import LocalCluster
from holdfast.testing.ports import free_port


async def dial(receiver: Receiver) -> Talk:
    """A connection as a broker makes it."""
    return Talk(*await asyncio.open_connection(*address_of(receiver.address)))


def at(offset: int, partition: int = 0, stream: int = 1) -> bytes:
    return b"MESSAGE_AT|%d|%d|%d||orders|m%d" % (stream, partition, offset, offset)


async def test_messages_are_acknowledged_after_they_were_processed_and_not_before() -> None:
    async with Receiver("127.0.0.1:0") as receiver, await dial(receiver) as broker:
        broker.send(at(0), at(1), at(2))
        assert (await receiver.get()).value == b"m0"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await broker.reader.readline()
        assert [each.value for each in await receiver.get_many()] == [b"m1", b"m2"]
        assert await broker.line() == b"ACK|1"
        receiver.done()
        assert await broker.line() == b"ACK|2"


async def test_what_another_node_sends_again_is_handed_out_once_and_acknowledged_when_it_is_done() -> None:
    async with Receiver("127.0.0.1:0") as receiver, await dial(receiver) as first, await dial(receiver) as second:
        first.send(*map(at, range(3)))
        got = [(await receiver.get()).value]
        second.send(*map(at, range(5)))
        got += [(await receiver.get()).value for _ in range(4)]
        assert got == [b"m0", b"m1", b"m2", b"m3", b"m4"]
        # The last one is not done, and the repeated ones before it are.
        acknowledged = 0
        while acknowledged < 4:
            acknowledged += int((await second.line()).removeprefix(b"ACK|"))
        assert acknowledged == 4
        receiver.done()
        assert await second.line() == b"ACK|1"


async def test_one_that_is_slow_is_believed_what_it_did_though_all_came_again() -> None:
    async with Receiver("127.0.0.1:0") as receiver:
        async with await dial(receiver) as first:
            first.send(*map(at, range(10)))
            await receiver.get()
        async with await dial(receiver) as second:
            second.send(*map(at, range(10)))
            assert [(await receiver.get()).value for _ in range(8)][-1] == b"m8"
            acknowledged = 0
            while acknowledged < 8:
                acknowledged += int((await second.line()).removeprefix(b"ACK|"))
            assert acknowledged == 8


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 12)), max_size=12), st.data())
def test_whatever_comes_again_each_message_has_the_number_it_came_with(
    stretches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    streams = [_Seen(), _Seen()]
    numbers: dict[tuple[int, int], int] = {}
    processed = 0
    for stream, first, count in stretches:
        for offset in range(first, first + count):
            before, new = numbers.get((stream, offset)), len(numbers) + 1
            number = streams[stream].take(offset, new, processed)
            if before is None:
                numbers[stream, offset] = new
            # Of those that are processed only that matters.
            assert number == (before or new) or max(number, before or new) <= processed
            if data.draw(st.booleans()):
                processed = data.draw(st.integers(processed, len(numbers)))


async def test_of_too_many_streams_the_one_that_rested_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.receiver._STREAMS_MAX", 2)
    async with Receiver("127.0.0.1:0") as receiver, await dial(receiver) as broker:
        for stream in (1, 2, 1, 3, 1, 4):
            broker.send(at(0, stream=stream))
            await until(lambda wanted=b"%d" % stream: wanted in {key[0] for key in receiver._seen}, "it came")  # type: ignore[misc]
        broker.send(at(0, stream=1), at(1, stream=1))
        got = [await receiver.get() for _ in range(5)]
        assert [each.offset for each in got] == [0, 0, 0, 0, 1]


async def test_partitions_and_a_topic_that_was_created_anew_are_told_apart() -> None:
    async with Receiver("127.0.0.1:0") as receiver, await dial(receiver) as broker:
        broker.send(at(0), at(0, partition=1), at(0), at(0, stream=2))
        got = [await receiver.get() for _ in range(3)]
        assert [(each.partition, each.offset, each.topic) for each in got] == [
            (0, 0, "orders"),
            (1, 0, "orders"),
            (0, 0, "orders"),
        ]


async def test_plain_lines_and_bytes_that_are_no_line_are_understood() -> None:
    async with Receiver("127.0.0.1:0") as receiver, await dial(receiver) as broker:
        broker.send(b"MESSAGE|orders|a|b", b"MESSAGE_BASE64|orders|YQpi", b"MESSAGE_AT_BASE64|1|2|3|x%7Cy|orders|YQpi")
        got = [await receiver.get() for _ in range(3)]
        assert [each.value for each in got] == [b"a|b", b"a\nb", b"a\nb"]
        assert (got[0].partition, got[0].offset, got[0].id) == (None, None, None)
        assert (got[2].partition, got[2].offset, got[2].id) == (2, 3, "x|y")


async def test_who_sends_something_else_is_hung_up_on_and_nobody_else() -> None:
    async with Receiver("127.0.0.1:0") as receiver, await dial(receiver) as stranger, await dial(receiver) as broker:
        stranger.send(b"GET / HTTP/1.1", b"")
        assert await stranger.closed_after() == b""
        broker.send(at(0))
        assert (await receiver.get()).text == "m0"


class Interrupted(BaseException):
    """A signal handler that ends what runs, as Ctrl-C does."""


def interrupted_at(step: int, module: str) -> Callable[[FrameType, str, object], Any]:
    """A trace function that raises before that instruction of a module, where a signal's handler may run."""
    left = step

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(module):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    return trace


# One that comes between making a coroutine and handing it over leaves the coroutine unused.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_interrupt_between_any_two_steps_loses_no_message_and_repeats_at_most_one() -> None:
    step, was_interrupted = 0, True
    while was_interrupted:
        got, was_interrupted = list[bytes](), False
        with socket.socket() as broker:
            try:
                with BlockingReceiver("127.0.0.1:0") as receiver:
                    broker.connect(address_of(receiver.address))
                    sys.settrace(interrupted_at(step, "blocking_receiver.py"))
                    try:
                        for first in (0, 3):
                            broker.sendall(b"".join(at(offset) + b"\n" for offset in range(first, first + 3)))
                            for _ in range(3):
                                got.append(receiver.get().value)
                    finally:
                        sys.settrace(None)
            except Interrupted:
                was_interrupted = True
            lines = broker.makefile("rb").read().split()
        acknowledged = sum(int(line.removeprefix(b"ACK|")) for line in lines)
        # The last one may come again: it is processed as soon as the next one is asked for.
        assert len(got) - 1 <= acknowledged <= len(got), (step, lines)
        step += 1
    assert step > 10


async def test_a_receiver_says_what_is_wrong_with_an_address() -> None:
    for wrong in ("9000", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            Receiver(wrong)


async def test_ids_and_lines_of_all_kinds_survive_the_way_from_publisher_to_receiver(broker: Serving) -> None:
    async with Receiver("127.0.0.1:0") as receiver:
        body = {"topic": "orders", "callback": receiver.address, "format": "numbered", "from": "earliest"}
        values = [
            {"value": "a\nb", "id": "50%|x"},
            {"value": "plain"},
            {"value": ""},
            {"value": "pipe|pipe", "id": "7"},
        ]
        await broker.http("POST", "/v1/topics/orders/messages", {"messages": values})
        await broker.http("POST", "/v1/subscriptions", body, expect=201)
        got = [await receiver.get() for _ in range(4)]
        assert [(each.offset, each.id, each.value) for each in got] == [
            (0, "50%|x", b"a\nb"),
            (1, None, b"plain"),
            (2, None, b""),
            (3, "7", b"pipe|pipe"),
        ]


def test_kill_of_the_node_that_delivers_loses_nothing_and_shows_nothing_twice() -> None:
    """A receiver that is told numbers gets each message once; a plain one may get some again, and misses none."""
    count, each_time = 3000, 500
    with (
        LocalCluster(nodes=3) as cluster,
        BlockingReceiver("127.0.0.1:0") as numbered,
        BlockingReceiver("127.0.0.1:0") as plain,
        cluster.connect_blocking() as broker,
    ):
        broker.create_topic("orders", partitions=2)
        broker.subscribe_callback("orders", numbered.address, name="billing")
        broker.subscribe_callback("orders", plain.address, name="archive", format="plain")

        def publish(numbers: range) -> None:
            for start in range(numbers.start, numbers.stop, each_time):
                for partition in range(2):
                    part = [str(number) for number in range(start + partition, start + each_time, 2)]
                    broker.publish_many("orders", part, partition=partition, retry_safe=True)

        publish(range(count // 3))
        got = [numbered.get() for _ in range(100)]
        seen = [int(plain.get().value) for _ in range(100)]
        cluster.kill(cluster.leader("orders", 0))
        publish(range(count // 3, count))
        got += [numbered.get() for _ in range(count - len(got))]
        for partition in range(2):
            values = [int(each.value) for each in got if each.partition == partition]
            assert values == list(range(partition, count, 2))
        while len(set(seen)) < count:
            seen.append(int(plain.get().value))
        for partition in range(2):
            # Some may come again, from where the cursor stood on, and nothing is passed over.
            numbers = [number for number in seen if number % 2 == partition]
            assert all(after <= before + 2 for before, after in pairwise(numbers))
        # The next one is asked for, so all of them are done: their cursor gets there, on the nodes that are left.
        broker.publish("orders", "last", partition=0)
        assert numbered.get().value == b"last"

        def standing() -> CallbackDescription:
            return next(each for each in broker.subscriptions("orders") if each.name == "billing")

        wait_until(lambda: standing().behind <= 1, "the cursor")
        assert standing().lost == 0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_printed_is_acknowledged_when_receive_is_ended(tmp_path: Path, signum: int, code: int) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "holdfast.cli", "receive", address]
    with (
        BrokerProcess(tmp_path / "data") as broker,
        connect_blocking(f"holdfast://127.0.0.1:{broker.http_address[1]}") as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as receiving,
    ):
        client.subscribe_callback("orders", address, name="billing")
        client.publish_many("orders", [f"{number:0100d}" for number in range(3000)])
        output = receiving.stdout
        assert output is not None
        printed = [output.readline()]
        # It is in the midst of what it took, and its pipe is full.
        wait_until(lambda: select.select([output], [], [], 0)[0] != [], "more is printed")
        receiving.send_signal(signum)
        printed += output.readlines()
        assert receiving.wait(20) == code
        assert printed == [b"%0100d\n" % number for number in range(len(printed))]
        wait_until(lambda: client.subscriptions("orders")[0].behind == 3000 - len(printed), "the cursor")


def test_commands_subscribe_receive_list_and_remove(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with BrokerProcess(tmp_path / "data") as broker:
        server = ("--server", f"127.0.0.1:{broker.http_address[1]}")
        said = holdfast("subscribe", "orders", "--callback", address, "--name", "billing", "--numbered", *server)
        assert said.text == f"orders is delivered to {address} as billing\n"
        with connect_blocking(f"holdfast://127.0.0.1:{broker.http_address[1]}") as client:
            client.publish("orders", "hello", id="1")
        listed = holdfast("subscriptions", "list", *server).text
        assert "waiting" in listed and address in listed
        received = holdfast_process("receive", address, "--count", "1", "--json")
        assert received.text == '{"topic":"orders","partition":0,"offset":0,"id":"1","value":"hello"}\n'
        removed = holdfast("subscriptions", "remove", "orders", "billing", "--yes", *server)
        assert removed.text == "removed billing from orders\n"


def test_a_broker_that_connects_while_a_receiver_closes_is_hung_up_on() -> None:
    """It would take a connection that nobody reads for a receiver that is busy."""
    kept = []  # for as long as the receiver lives, what it left open stays open
    for _ in range(100):
        receiver = BlockingReceiver("127.0.0.1:0")
        kept.append(receiver)
        with socket.create_connection(address_of(receiver.address), timeout=5.0) as broker:
            receiver.close()
            with contextlib.suppress(ConnectionResetError):  # it was not even accepted
                assert broker.recv(1) == b""

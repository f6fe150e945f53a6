"""Lines with ids are stored in their order, though some are refused in between and come again behind later ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.serving import PUBACK, Serving, code_of, serving
from testkit.wait import until

from holdfast.model.errors import HoldfastError, LeaderChanged, NotLeader, Unavailable


def line(number: int, topic: str = "t") -> bytes:
    return b"PUBLISH_ID|id-%d|%b|%d" % (number, topic.encode(), number)


def told(lines: list[bytes]) -> list[str]:
    return ["stored" if each == PUBACK else code_of(each) for each in lines]


class Store:
    """The broker's own store, which refuses, or does not answer, for as long as a test says."""

    def __init__(self, broker: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusal: HoldfastError | None = None
        self.is_silent = False
        self.under_way: list[asyncio.Future[int]] = []
        self._append: Callable[..., asyncio.Future[int]] = broker.node.backend.append  # type: ignore[assignment]
        monkeypatch.setattr(broker.node.backend, "append", self.append)

    def append(self, *batch: object) -> asyncio.Future[int]:
        if self.refusal is not None:
            raise self.refusal
        if self.is_silent:
            self.under_way.append(asyncio.get_running_loop().create_future())
            return self.under_way[-1]
        return self._append(*batch)


@pytest.mark.parametrize("refusal", [Unavailable("not yet"), NotLeader("not yet"), LeaderChanged("who knows")])
async def test_line_behind_a_refused_one_is_not_stored_before_it(
    broker: Serving, monkeypatch: pytest.MonkeyPatch, refusal: HoldfastError
) -> None:
    store = Store(broker, monkeypatch)
    async with await broker.connect() as talk:
        assert await talk.ask(line(0)) == PUBACK
        store.refusal = refusal
        assert await talk.error_of(line(1)) == refusal.code
        store.refusal = None
        # Sent by somebody who does not know yet that the first of them was refused.
        talk.send(line(2), line(3))
        talk.send(line(4))
        assert told(await talk.lines(3)) == ["unavailable"] * 3
        talk.send(line(0), line(1), line(2), line(3), line(4))
        assert told(await talk.lines(5)) == ["unavailable", *["stored"] * 4]
        assert await talk.ask(line(5)) == PUBACK
    assert await broker.stored("t") == [b"%d" % number for number in range(6)]


async def test_line_is_stored_only_when_it_is_known_what_became_of_those_before_it(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(broker, monkeypatch)
    async with await broker.connect() as talk:
        assert await talk.ask(line(0)) == PUBACK
        store.is_silent = True
        talk.send(line(1), line(2))
        await until(lambda: bool(store.under_way), "the first lines are under way")
        store.is_silent = False
        # The store would take these: another one leads, and does not have what is under way here.
        talk.send(line(3), b"PING", line(4))
        async with await broker.connect() as other:
            assert await other.ask(b"PUBLISH|u|of somebody else") == PUBACK
        assert await broker.stored("t") == [b"0"]
        store.under_way[0].set_exception(LeaderChanged("it was lost"))
        got = await talk.lines(5)
        assert told([*got[:3], got[4]]) == ["leader_changed", "leader_changed", "unavailable", "unavailable"]
        assert got[3] == b"PONG"
        talk.send(*map(line, range(1, 5)))
        assert told(await talk.lines(4)) == ["stored"] * 4
    assert await broker.stored("t") == [b"%d" % number for number in range(5)]


async def test_another_connection_is_not_held_up_by_a_refusal(broker: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(broker, monkeypatch)
    async with await broker.connect() as talk, await broker.connect() as other:
        assert await talk.ask(line(0)) == PUBACK
        store.refusal = Unavailable("not yet")
        assert await talk.error_of(line(1)) == "unavailable"
        store.refusal = None
        assert await talk.ask(b"PUBLISH|t|without an id") == PUBACK
        assert await talk.error_of(line(2)) == "unavailable"
        assert await talk.is_usable()
        other.send(line(1), line(2))
        assert told(await other.lines(2)) == ["stored"] * 2
    assert await broker.stored("t") == [b"0", b"without an id", b"1", b"2"]


async def test_line_that_is_refused_for_good_costs_no_line_around_it(tmp_path: Path) -> None:
    async with serving(tmp_path, message_bytes_max=1000) as broker, await broker.connect() as talk:
        large = b"PUBLISH_ID|large|t|" + b"x" * 1001
        talk.send(line(0), large, line(1, "u"), b"PUBLISH_ID||t|x", b"PUBLISH_ID|a|no,path|x", line(2), large, line(3))
        expected = ["stored", "too_large", "stored", "bad_id", "bad_topic", "stored", "too_large", "stored"]
        assert told(await talk.lines(8)) == expected
        assert await broker.stored("t") == [b"0", b"2", b"3"]
        assert await broker.stored("u") == [b"1"]


async def test_ten_thousand_runs_of_lines_in_one_piece_are_answered_in_order(broker: Serving) -> None:
    async with await broker.connect() as talk:
        assert await talk.ask(line(0)) == PUBACK
        talk.send(*[each for _ in range(10_000) for each in (b"PUBLISH_ID||t|x", b"PING")], line(1))
        got = await talk.lines(20_001)
        assert told(got[:20_000:2]) == ["bad_id"] * 10_000
        assert got[1:20_000:2] == [b"PONG"] * 10_000
        assert got[-1] == PUBACK


async def test_runs_that_wait_are_stored_though_their_publisher_has_left(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(broker, monkeypatch)
    async with await broker.connect() as talk:
        assert await talk.ask(line(0)) == PUBACK
        store.is_silent = True
        talk.send(line(1), b"PING", line(2), b"SUBSCRIBE|t")
        await until(lambda: bool(store.under_way), "the first line is under way")
        store.is_silent = False
        talk.abort()
    store.under_way[0].set_result(1)
    async with await broker.connect() as other:
        async with asyncio.timeout(30):
            while await broker.stored("t") != [b"0", b"2"]:
                assert await other.is_usable()


async def test_connection_ends_where_nobody_can_say_what_became_of_its_lines(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> asyncio.Future[object]:
        failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failed.set_exception, RuntimeError("a bug"))
        return failed

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    async with await broker.connect() as talk:
        assert await talk.ask(line(0)) == PUBACK
        with monkeypatch.context() as patched:
            patched.setattr(broker.node.broker, "publish", fail)
            talk.send(line(1), line(2))
            assert await talk.closed_after() == b""
    assert [str(error) for error in told] == ["a bug"]
    async with await broker.connect() as other:
        assert await other.ask(line(1)) == PUBACK

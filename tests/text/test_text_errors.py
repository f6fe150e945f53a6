"""Every error a text client can get: it says what is wrong, changes nothing, and the connection goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from testkit.serving import PUBACK, SUBACK, Serving, code_of, serving
from testkit.wait import until

from holdfast.broker import making_topics
from holdfast.frontends.text import connection as connection_module
from holdfast.model.errors import DiskFull, StorageFailed
from holdfast.model.ids import TopicName

WRONG_LINES = {
    b"DANCE": "bad_command",
    b"DANCE|t|x": "bad_command",
    b"\x00\x01\x02": "bad_command",
    b"|": "bad_command",
    b" PING": "bad_command",
    b"PUBLISH": "bad_command",
    b"PUBLISH|": "bad_command",
    b"PUBLISH|t": "bad_command",
    b"PUBLISH_ID|id|t": "bad_command",
    b"SUBSCRIBE": "bad_command",
    b"SUBSCRIBE||": "bad_command",
    b"SUBSCRIBE|t|name|surplus": "bad_command",
    b"UNSUBSCRIBE": "bad_command",
    b"UNSUBSCRIBE|t|name": "bad_command",
    b"PING|x": "bad_command",
    b"HEARTBEAT|x": "bad_command",
    b"\xff\xfe\x00": "bad_command",
    b"GET / HTTP/1.1": "bad_command",
    b"PUBLISH||x": "bad_topic",
    b"PUBLISH|.|x": "bad_topic",
    b"PUBLISH|..|x": "bad_topic",
    b"PUBLISH|a |x": "bad_topic",
    b"PUBLISH|\xff|x": "bad_topic",
    "PUBLISH|gr\u200bn|x".encode(): "bad_topic",
    b"PUBLISH|%b|x" % (b"t" * 201): "bad_topic",
    b"PUBLISH_ID|id|no,path|x": "bad_topic",
    b"SUBSCRIBE|no,path": "bad_topic",
    b"SUBSCRIBE|a ": "bad_topic",
    b"SUBSCRIBE|no,path|name": "bad_topic",
    b"PUBLISH_ID||t|x": "bad_id",
    b"PUBLISH_ID|%b|t|x" % (b"i" * 251): "bad_id",
    b"PUBLISH_ID|tab\there|t|x": "bad_id",
    b"PUBLISH_ID|\xff|t|x": "bad_id",
    b"SUBSCRIBE|t|no/name": "bad_cursor",
    b"SUBSCRIBE|t|bad name": "bad_cursor",
    b"SUBSCRIBE|t|holdfast.processor": "bad_cursor",
    b"SUBSCRIBE_ID|t|holdfast.done": "bad_cursor",
    b"SUBSCRIBE|t|%b" % (b"n" * 201): "bad_cursor",
    b"UNSUBSCRIBE|t": "not_subscribed",
    b"UNSUBSCRIBE|no,path": "not_subscribed",
}


async def test_wrong_line_is_told_what_is_wrong_and_changes_nothing(broker: Serving) -> None:
    async with await broker.connect() as talk:
        for line, code in WRONG_LINES.items():
            assert await talk.error_of(line) == code, line
            assert await talk.is_usable(), f"not after {line!r}"
        talk.send(*WRONG_LINES)
        assert [code_of(line) for line in await talk.lines(len(WRONG_LINES))] == list(WRONG_LINES.values())
        assert broker.node.broker.topics() == [], "a refused line made a topic"
        assert await talk.ask(b"PUBLISH|t|x") == PUBACK
    counted = broker.node.broker.stats.errors
    assert counted["bad_command"] == 2 * list(WRONG_LINES.values()).count("bad_command")


async def test_error_is_one_line_whatever_was_sent(broker: Serving) -> None:
    async with await broker.connect() as talk:
        for line in (
            b"\x0b\x0c\x1c\x85 \r x",
            b"PUBLISH|\r\r|x",
            b"UNSUBSCRIBE|" + bytes(range(11, 256)).replace(b"|", b""),
        ):
            answer = await talk.ask(line)
            assert code_of(answer)
            assert answer.decode("utf-8").isprintable(), answer
        assert await talk.is_usable()


async def test_missing_topic_is_told_where_topics_are_not_made_by_use(tmp_path: Path) -> None:
    async with serving(tmp_path, auto_create=False) as broker, await broker.connect() as talk:
        for line in (b"PUBLISH|t|x", b"PUBLISH_ID|i|t|x", b"SUBSCRIBE|t", b"SUBSCRIBE|t|name"):
            assert await talk.error_of(line) == "topic_not_found"
            assert await talk.is_usable()
        await broker.http("POST", "/v1/topics", {"topic": "t"}, expect=201)
        assert await talk.ask(b"SUBSCRIBE|t") == SUBACK
        assert sorted([await talk.ask(b"PUBLISH|t|x"), await talk.line()]) == [b"MESSAGE|t|x", PUBACK]


async def test_topics_beyond_the_limit_are_refused_also_where_they_are_made_by_use(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making_topics, "TOPICS_MAX", 5)
    async with await broker.connect() as talk:
        talk.send(*[b"PUBLISH|t%d|x" % i for i in range(20)])
        answers = [line if line == PUBACK else code_of(line) for line in await talk.lines(20)]
        assert sorted(map(str, answers)) == sorted(map(str, [PUBACK] * 5 + ["too_many_topics"] * 15))
        assert await talk.error_of(b"SUBSCRIBE|another") == "too_many_topics"
        assert await talk.error_of(b"PUBLISH_ID|i|another|x") == "too_many_topics"
        stored = [i for i, answer in enumerate(answers) if answer == PUBACK]
        assert await talk.ask(b"PUBLISH|t%d|y" % stored[0]) == PUBACK, "a topic that is there is refused"
    assert len(broker.node.broker.topics()) == 5


async def test_subscriptions_beyond_the_limit_are_refused(broker: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "TEXT_SUBSCRIPTIONS_PER_CONNECTION_MAX", 3)
    async with await broker.connect() as talk:
        for i in range(3):
            assert await talk.ask(b"SUBSCRIBE|t%d" % i) == SUBACK
        assert await talk.error_of(b"SUBSCRIBE|t3") == "too_many_subscriptions"
        assert await talk.ask(b"SUBSCRIBE|t0") == SUBACK, "it has this one"
        assert (await talk.ask(b"UNSUBSCRIBE|t1")).startswith(b"UNSUBACK")
        assert await talk.ask(b"SUBSCRIBE|t3") == SUBACK


@pytest.mark.parametrize(
    ("error", "code"), [(DiskFull("the disk is full"), "disk_full"), (StorageFailed("no"), "storage_failed")]
)
async def test_store_that_takes_nothing_is_told_for_each_line_and_publishing_goes_on_afterwards(
    broker: Serving, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    await broker.publish(b"t", [b"before"])
    await broker.publish(b"u", [b"before"])
    async with await broker.connect() as talk:
        with monkeypatch.context() as broken:
            broken.setattr(broker.node.backend, "append", refuse)
            talk.send(*[b"PUBLISH|t|lost"] * 50, b"PUBLISH|u|lost", b"PUBLISH_ID|i|t|lost", b"PING")
            answers = await talk.lines(53)
            assert [code_of(line) for line in answers[:52]] == [code] * 52
            assert answers[52] == b"PONG"
        talk.send(b"PUBLISH|t|after", b"PUBLISH_ID|i|t|after")
        assert await talk.lines(2) == [PUBACK, PUBACK]
    assert await broker.stored("t") == [b"before", b"after", b"after"]


async def test_sync_that_fails_is_told_for_each_line_that_waits_for_it(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.publish(b"t", [b"before"])
    waiting: list[asyncio.Future[int]] = []

    def hold(*_: object) -> asyncio.Future[int]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async with await broker.connect() as talk:
        with monkeypatch.context() as held:
            held.setattr(broker.node.backend, "append", hold)
            talk.send(b"PUBLISH|t|1", b"PUBLISH|t|2", b"PING", b"PUBLISH_ID|i|t|3", b"UNSUBSCRIBE|t", b"PUBLISH|t|4")
            await until(lambda: len(waiting) >= 3, "the lines are waiting for the disk")
            for future in reversed(waiting):
                future.set_exception(StorageFailed("a sync failed"))
        got = await talk.lines(6)
        told = [line if line == b"PONG" else code_of(line) for line in got]
        assert told == [
            "storage_failed",
            "storage_failed",
            b"PONG",
            "storage_failed",
            "not_subscribed",
            "storage_failed",
        ]
        assert await talk.is_usable()


async def test_publish_to_a_broker_that_is_leaving_is_refused_and_what_was_taken_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await broker.connect() as talk:
        assert await talk.ask(b"PUBLISH|t|before") == PUBACK
        broker.node.broker.refuse_publishes()
        talk.send(b"PUBLISH|t|late", b"PUBLISH_ID|i|t|late", b"PUBLISH|other|late", b"PING")
        got = await talk.lines(4)
        assert [code_of(line) for line in got[:3]] == ["shutting_down"] * 3
        assert got[3] == b"PONG"
        assert await broker.stored("t") == [b"before"]
        assert broker.node.backend.topic(TopicName("other")) is None


async def test_every_line_received_before_a_stop_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        talk = await broker.connect()
        talk.send(*[b"PUBLISH|t|%d" % i for i in range(2000)])
        first = await talk.line()
    rest = (await talk.closed_after()).split(b"\n")
    await talk.close()
    answers = [first, *rest[:-1]]
    acknowledged = answers.count(PUBACK)
    assert answers[:acknowledged] == [PUBACK] * acknowledged
    assert {code_of(line) for line in answers[acknowledged:]} <= {"shutting_down"}
    async with serving(tmp_path) as broker:
        assert await broker.stored("t") == [b"%d" % i for i in range(acknowledged)]

"""A partner that does not read, or that says what no broker says, costs neither memory nor the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from testkit.inprocess import OneNode

from holdfast.backends.plain.deliveries import Deliveries
from holdfast.backends.plain.draining import Draining
from holdfast.backends.plain.giving import give_all
from holdfast.backends.plain.journal import Entry, Journal
from holdfast.backends.plain.marking import Marking
from holdfast.backends.plain.settings import PlainSettings
from holdfast.consensus.partner import PairSettings
from holdfast.consensus.plain_standing import Reign
from holdfast.model.ids import TimestampMs, TopicName


def journal_in(path: Path) -> Journal:
    return Journal(path, is_synced=False, on_synced=lambda: None, on_failure=lambda error: None)


async def test_backup_that_does_not_read_is_told_of_a_little_at_a_time(tmp_path: Path) -> None:
    """It was away for long: what it missed is forgotten here, and all of it has to be called delivered."""
    node = OneNode(tmp_path / "data", sync="none")
    await node.open()
    inner = node.backend
    journal = journal_in(tmp_path)
    journal.cut(50_000)
    draining = Draining(inner, journal, 0, lambda: None)
    marking = Marking(inner, journal, draining, Deliveries(inner, lambda topic: topic), Reign(1, "a"))
    said: list[list[Entry]] = []
    reads = asyncio.Event()

    async def say(entries: list[Entry]) -> None:
        said.append(entries)
        await reads.wait()

    telling = asyncio.create_task(marking.tell(0, lambda: 50_000, say))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(said) == 1 and len(said[0]) <= 1_000
    reads.set()
    while not marking.is_told:
        await asyncio.sleep(0.005)
    assert [each.position for entries in said for each in entries] == list(range(50_000))
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    await journal.stop()
    await node.stop()


async def test_answer_that_is_too_long_is_no_end_of_the_broker_that_gives(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    journal.append([(TopicName("t"), f"m{number}", b"%d" % number) for number in range(3)], 1, TimestampMs(0))
    dials = 0
    taken: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials
        dials += 1
        if dials == 1:
            writer.write(b"x" * 200_000 + b"\n")
        while line := await reader.readline():
            taken.append(line)
            writer.write(b"PUBACK\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    pair = PairSettings(heartbeat_s=0.02, misses=50)
    settings = PlainSettings(f"{host}:{port}", (host, port), "backup", is_bare=False, pair=pair)
    given: list[int] = []
    await asyncio.wait_for(give_all(journal, 0, lambda _: True, settings, lambda to, _: given.append(to)), 20)
    assert given == [3] and dials == 2 and taken[-1] == b"PUBLISH_ID|m2|t|2\n"
    server.close()
    await journal.stop()

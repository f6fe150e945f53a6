"""What a broker that was replaced does with what only it has: it publishes that to the one that took over.

With ids, so that the other one recognises what it was sent by somebody else meanwhile. What was given is noted from
time to time, so that a restart does not give everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from holdfast.backends.plain.journal import Entry, Journal
from holdfast.backends.plain.settings import PlainSettings
from holdfast.model.errors import Unavailable

log = structlog.get_logger("holdfast.pair")

_READ_BYTES: Final = 128 * 1024
# What a publish is answered with, in either dialect.
_ACKNOWLEDGED: Final = (b"PUBACK", b"ACK")


async def give_all(
    journal: Journal,
    first: int,
    is_needed: Callable[[int], bool],
    settings: PlainSettings,
    on_given: Callable[[int, int], None],
) -> None:
    """Publish all entries from a position on, for as long as that takes: nothing is given up on.

    `on_given` is told the position behind what was acknowledged, and how many messages that were.
    """

    def note(position: int, count: int) -> None:
        nonlocal first
        first = position
        on_given(position, count)

    while first < journal.end:
        try:
            await _give(journal, first, is_needed, settings.address, settings.pair.patience_s, note)
        except (OSError, TimeoutError, Unavailable) as error:
            log.warning("cannot_give", partner=settings.partner, problem=str(error), hint="it is tried again")
            await asyncio.sleep(settings.pair.heartbeat_s)


async def _give(
    journal: Journal,
    first: int,
    is_needed: Callable[[int], bool],
    address: tuple[str, int],
    patience_s: float,
    on_given: Callable[[int, int], None],
) -> None:
    """Raises `OSError`, `TimeoutError`, `Unavailable`."""
    async with asyncio.timeout(patience_s):
        reader, writer = await asyncio.open_connection(*address)
    try:
        position = max(first, journal.start)
        while entries := journal.read(position, _READ_BYTES):
            needed = [entry for entry in entries if is_needed(entry.position)]
            async with asyncio.timeout(patience_s):
                await _publish(needed, reader, writer)
            position = entries[-1].position + 1
            on_given(position, len(needed))
    finally:
        writer.transport.abort()


async def _publish(entries: list[Entry], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = (
        b"PUBLISH_ID|%b|%b|%b\n" % (entry.message_id.encode(), entry.topic.encode(), entry.value) for entry in entries
    )
    if writer.transport.is_closing():
        raise Unavailable("the other one closed the connection")
    writer.write(b"".join(lines))
    await writer.drain()
    left = len(entries)
    while left:
        try:
            answer = (await reader.readline()).rstrip(b"\n")
        except ValueError as error:
            raise Unavailable("the other one answers with lines that no broker writes: they are too long") from error
        if answer.partition(b"|")[0] in _ACKNOWLEDGED:
            left -= 1
        elif answer.startswith(b"ERROR|") or not answer:
            raise Unavailable(f"the other one does not take it: {answer[:200].decode('utf-8', 'replace')}")

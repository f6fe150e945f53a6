"""Lines that do not end cannot fill the memory, however many connections begin one."""

from __future__ import annotations

import asyncio

import pytest
from testkit.serving import CONNACK, PUBACK, Serving
from testkit.wait import until

from holdfast.frontends.text.half_lines import HalfLine, HalfLines
from holdfast.frontends.text.server import TextFrontend
from holdfast.model.errors import Overloaded
from holdfast.model.limits import KIB, TEXT_HALF_LINE_BYTES_FREE
from holdfast.wire.text import STANDARD

BOUND = 512 * KIB


def test_bound_holds_over_all_lines_and_short_ones_are_free() -> None:
    all_lines = HalfLines(BOUND)
    for _ in range(100):
        HalfLine(all_lines).add(bytes(TEXT_HALF_LINE_BYTES_FREE))
    first, second = HalfLine(all_lines), HalfLine(all_lines)
    first.add(bytes(BOUND))
    first.add(bytes(TEXT_HALF_LINE_BYTES_FREE))
    second.add(b"x" * TEXT_HALF_LINE_BYTES_FREE)
    with pytest.raises(Overloaded):
        second.add(b"y")
    assert second.take() == b"x" * TEXT_HALF_LINE_BYTES_FREE, "what was there is not lost"
    assert len(first.take()) == BOUND + TEXT_HALF_LINE_BYTES_FREE and not first
    second.add(bytes(BOUND))
    second.clear()
    first.add(bytes(BOUND))


async def test_lines_that_do_not_end_are_refused_beyond_a_bound_and_others_go_on(broker: Serving) -> None:
    frontend = TextFrontend(broker.node.broker, STANDARD, half_lines_bytes_max=BOUND)
    host, port = await frontend.start("127.0.0.1", 0)
    try:
        greedy = [await asyncio.open_connection(host, port) for _ in range(8)]
        for reader, writer in greedy:
            assert await reader.readline() == CONNACK + b"\n"
            writer.write(b"PUBLISH|t|" + bytes(200 * KIB))
        # Two of them fit.
        said = [asyncio.create_task(reader.readline()) for reader, _ in greedy]
        await until(lambda: sum(each.done() for each in said) == 6, "the others are refused")
        refused = [each.result() for each in said if each.done()]
        assert all(line.startswith(b"ERROR|overloaded|") for line in refused)
        reader, writer = await asyncio.open_connection(host, port)
        await reader.readline()
        writer.write(b"PUBLISH|t|short\n")
        assert await reader.readline() == PUBACK + b"\n"
        # Those that fit go on, and then there is room again.
        for each, (_, held) in zip(said, greedy, strict=True):
            if not each.done():
                held.write(b"\n")
                assert await each == PUBACK + b"\n"
        writer.write(b"PUBLISH|t|" + bytes(400 * KIB))
        writer.write(b"\n")
        assert await reader.readline() == PUBACK + b"\n"
        for _, held in [*greedy, (reader, writer)]:
            held.close()
    finally:
        await frontend.stop(0.1)

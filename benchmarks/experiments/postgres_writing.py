"""What a broker over a PostgreSQL stores in a second, over HTTP, with everything on this machine (decision 0020).

Run: `python -m benchmarks.experiments.postgres_writing [SECONDS]`

Messages of 190 bytes over 10 partitions. First without a broker, how rows get into the table: COPY with rows made by
hand, COPY with the driver's own encoder, `INSERT ... SELECT unnest`. Then through `holdfast serve --store postgres`:
1,000 messages a request, as record batches, as JSON, and with ids; and one message a request over 64 connections.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import chain
from pathlib import Path

import asyncpg
import uvloop

from benchmarks.load import http
from holdfast.backends.postgres import rows
from holdfast.backends.postgres.database import Database
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder

_SECONDS = 5.0
_PARTITIONS = 10
_VALUE_BYTES = 190
_AT_ONCE = 1000
_TABLE_ROWS = 100_000
# Of each way, one after the other; the best counts, as nobody has the machine to himself.
_TURNS = 5
_VALUES = [b"%06d" % number + b"x" * (_VALUE_BYTES - 6) for number in range(_AT_ONCE)]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else _SECONDS
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        uvloop.run(_table(Path(directory) / "table"))
        uvloop.run(_broker(Path(directory), seconds))


# --- the table alone ------------------------------------------------------------------------------------


async def _table(path: Path) -> None:
    server = EmbeddedServer(path)
    database = Database(await server.start(), timeout_s=60, application="bench")
    await database.start()
    connection = await database.connect()
    print(f"{_TABLE_ROWS} rows into holdfast.messages, {_AT_ONCE * _PARTITIONS} in a transaction:")
    ways: dict[str, Callable[[asyncpg.Connection, int], Awaitable[None]]] = {
        "COPY, rows made by hand": _by_hand,
        "COPY, the driver's encoder": _by_driver,
        "INSERT ... SELECT unnest": _by_unnest,
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(_TURNS):
        for name, way in ways.items():
            await connection.execute("TRUNCATE holdfast.messages")
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for base in range(0, _TABLE_ROWS // _PARTITIONS, _AT_ONCE):
                async with connection.transaction():
                    await way(connection, base)
            took[name].append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
    for name, turns in took.items():
        seconds, cpu_s = min(turn[0] for turn in turns), min(turn[1] for turn in turns)
        print(f"  {name:28s} {_TABLE_ROWS / seconds:9,.0f} rows/s, {cpu_s / _TABLE_ROWS * 1e6:5.2f} µs a row here")
    await connection.close()
    await database.stop()
    await server.stop()


async def _by_driver(connection: asyncpg.Connection, base: int) -> None:
    parts = [rows.plain_rows(1, number, base, 0, _VALUES) for number in range(_PARTITIONS)]
    await connection.copy_records_to_table(
        "messages", schema_name="holdfast", columns=rows.COLUMNS, records=chain.from_iterable(parts)
    )


async def _by_hand(connection: asyncpg.Connection, base: int) -> None:
    made = [_stream_of(number, base) for number in range(_PARTITIONS)]

    async def stream() -> AsyncIterator[bytes]:
        yield b"PGCOPY\n\xff\r\n\0" + bytes(8)
        for part in made:
            yield part
        yield b"\xff\xff"

    await connection.copy_to_table(
        "messages", schema_name="holdfast", columns=rows.COLUMNS, format="binary", source=stream()
    )


def _stream_of(number: int, base: int) -> bytes:
    """The rows of one batch in PostgreSQL's binary form, by one `join`."""
    null = b"\xff\xff\xff\xff"
    parts = [b""] * (4 * len(_VALUES))
    parts[0::4] = [struct.pack(">hiiiii", len(rows.COLUMNS), 4, 1, 4, number, 8)] * len(_VALUES)
    parts[1::4] = map(struct.Struct(">q").pack, range(base, base + len(_VALUES)))
    parts[2::4] = [struct.pack(">iqiii", 8, 0, -1, -1, _VALUE_BYTES)] * len(_VALUES)
    parts[3::4] = [value + null * 4 for value in _VALUES]
    return b"".join(parts)


async def _by_unnest(connection: asyncpg.Connection, base: int) -> None:
    for number in range(_PARTITIONS):
        await connection.execute(
            'INSERT INTO holdfast.messages (topic_id, partition, "offset", created_at, value) '
            "SELECT 1, $1, o, now(), v FROM unnest($2::bigint[], $3::bytea[]) AS n (o, v)",
            number,
            list(range(base, base + _AT_ONCE)),
            _VALUES,
        )


# --- through a broker -----------------------------------------------------------------------------------


async def _broker(path: Path, seconds: float) -> None:
    ready = path / "ready.json"
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--store", "postgres", "--data", str(path / "data")]
    command += ["--text", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as broker:  # noqa: ASYNC220 - nothing else runs yet
        try:
            while not ready.exists():
                assert broker.poll() is None, "the broker did not start"
                await asyncio.sleep(0.05)
            port = int(json.loads(ready.read_bytes())["http"].rpartition(":")[2])
            http.ask(port, http.create_topic("bench", _PARTITIONS))
            batch = bytes(batch_builder.build_values(_VALUES, int(time.time() * 1000)))
            batches = [http.publish_batches("bench", [batch], number) for number in range(_PARTITIONS)]
            await _load(port, "1,000 a request, record batches", batches, 10, _AT_ONCE, seconds)
            plain = _json([{"value": value.decode()} for value in _VALUES])
            await _load(port, "1,000 a request, JSON", [plain], 10, _AT_ONCE, seconds)
            listed = _json([{"value": value.decode(), "key": str(place % 50)} for place, value in enumerate(_VALUES)])
            await _load(port, "1,000 a request, JSON with keys", [listed], 10, _AT_ONCE, seconds)
            await _load(port, "1,000 a request, ids", _WithIds(), 10, _AT_ONCE, seconds)
            one = _json([{"value": _VALUES[0].decode()}])
            await _load(port, "1 a request, 64 connections", [one], 64, 1, seconds)
            await _load(port, "1 a request, 1 connection", [one], 1, 1, seconds)
        finally:
            broker.terminate()


def _json(messages: list[dict[str, str]]) -> bytes:
    body = json.dumps({"messages": messages}, separators=(",", ":")).encode()
    head = "POST /v1/topics/bench/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _WithIds(list[bytes]):
    """A new request each time, with ids that were not used before."""

    made = 0

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, place: object) -> bytes:  # type: ignore[override]
        self.made += 1
        messages = [
            NewMessage(value=value, id=f"{self.made}-{number}", headers=[("transaction-id", b"%d" % number)])
            for number, value in enumerate(_VALUES)
        ]
        batch = bytes(batch_builder.build_batch(messages, int(time.time() * 1000)))
        return http.publish_batches("bench", [batch], self.made % _PARTITIONS)


async def _load(port: int, name: str, requests: list[bytes], connections: int, messages: int, seconds: float) -> None:
    """Each connection waits for its answer before it asks again."""
    done: list[float] = []
    ends_s = time.perf_counter() + seconds

    async def publish(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        turn = first
        while time.perf_counter() < ends_s:
            asked_s = time.perf_counter()
            writer.write(requests[turn % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            status, headers = http.parse_head(head[:-4])
            body = await reader.readexactly(int(headers["content-length"]))
            assert 200 <= status < 300, body
            done.append(time.perf_counter() - asked_s)
            turn += connections
        writer.close()

    cpu_s = time.process_time()
    await asyncio.gather(*(publish(number) for number in range(connections)))
    cpu_s = time.process_time() - cpu_s
    done.sort()
    rate = len(done) * messages / seconds
    p50, p99 = (done[int(len(done) * share)] * 1000 for share in (0.5, 0.99))
    print(f"{name:34s} {rate:9,.0f} msg/s   p50 {p50:6.2f} ms, p99 {p99:6.2f} ms   load's own cpu {cpu_s:.1f} s")


if __name__ == "__main__":
    main()

"""Reading back in bulk, two ways for each side: bytes that are only counted, and values in Python's hands.

Counting shows what the server can do. Decoding shows what a Python program gets: Redis's replies go
through hiredis (C), Holdfast's record batches through its own decoder.
"""

import importlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benchmarks.load import http, resp
from benchmarks.load.pipeline import Flow
from benchmarks.load.wire import MESSAGE_BYTES, LoadFailed, connect

if TYPE_CHECKING:
    from holdfast.model.messages import StoredMessage

RECEIVE_BUFFER_BYTES = 1 << 20

# Ids of the same length make all entries of a reply equally long, so a reader that only counts needs to
# know nothing but how many bytes to take off the socket.
FIRST_ID = 1_000_000_000


# What a program gets: bytes that are only counted, values, or messages with their keys, headers and ids.
Decode = Literal["nothing", "values", "messages"]


@dataclass(frozen=True, slots=True)
class RedisRead:
    port: int
    stream: bytes
    messages: int
    count: int
    decode: Decode


@dataclass(frozen=True, slots=True)
class HoldfastRead:
    port: int
    topic: str
    messages: int
    max_bytes: int
    decode: Decode


def entry_id(number: int) -> bytes:
    return b"1-%d" % (FIRST_ID + number)


def redis_reply_bytes(stream: bytes, entries: int) -> int:
    """How long XREAD's answer with that many of our entries is."""
    entry = b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nv\r\n$%d\r\n" % (len(entry_id(0)), entry_id(0), MESSAGE_BYTES)
    head = b"*1\r\n*2\r\n$%d\r\n%s\r\n*%d\r\n" % (len(stream), stream, entries)
    return len(head) + entries * (len(entry) + MESSAGE_BYTES + 2)


def read_redis(load: RedisRead) -> Flow:
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    take = _redis_bytes
    if load.decode != "nothing":
        importlib.import_module("hiredis")  # before the clock starts
        take = _redis_values
    with connect(load.port) as connection:
        start = time.perf_counter()
        done = 0
        while done < load.messages:
            last_id = entry_id(done - 1)
            request = resp.command(b"XREAD", b"COUNT", b"%d" % load.count, b"STREAMS", load.stream, last_id)
            connection.sendall(request)
            done += take(connection, buffer, load, min(load.count, load.messages - done))
        return Flow(done, time.perf_counter() - start)


def _redis_bytes(connection: socket.socket, buffer: bytearray, load: RedisRead, entries: int) -> int:
    left_bytes = redis_reply_bytes(load.stream, entries)
    while left_bytes > 0:
        size_bytes = connection.recv_into(buffer, min(left_bytes, RECEIVE_BUFFER_BYTES))
        if size_bytes == 0:
            raise LoadFailed("the server closed the connection")
        left_bytes -= size_bytes
    if not buffer.endswith(b"\r\n", 0, size_bytes):
        raise LoadFailed("the reply has another length than expected")
    return entries


def _redis_values(connection: socket.socket, buffer: bytearray, load: RedisRead, entries: int) -> int:
    import hiredis

    reader = hiredis.Reader()
    while True:
        size_bytes = connection.recv_into(buffer)
        if size_bytes == 0:
            raise LoadFailed("the server closed the connection")
        reader.feed(bytes(memoryview(buffer)[:size_bytes]))
        answer = reader.gets()
        if answer is not False:
            break
    values = [fields[1] for _, fields in answer[0][1]]
    _check_values(values, entries)
    return len(values)


def read_holdfast(load: HoldfastRead) -> Flow:
    buffer, decoder = bytearray(load.max_bytes + RECEIVE_BUFFER_BYTES), _decoder(load.decode)
    with connect(load.port) as connection:
        start = time.perf_counter()
        done = 0
        while done < load.messages:
            path = f"/v1/topics/{load.topic}/partitions/0/messages?offset={done}&max_bytes={load.max_bytes}"
            connection.sendall(http.get(path, http.BATCHES))
            status, headers, body = http.read_reply(connection, buffer)
            next_offset = int(headers.get("holdfast-next-offset", -1))
            if status != 200 or next_offset <= done:
                raise LoadFailed(f"status {status}, next offset {next_offset}: {bytes(body[:300])!r}")
            if decoder is not None:
                _check_values(decoder(body), next_offset - done)
            body.release()
            done = next_offset
        return Flow(done, time.perf_counter() - start)


def _decoder(decode: Decode) -> Callable[[memoryview], Sequence[bytes]] | None:
    """What makes values of stored batches, imported before the clock starts."""
    if decode == "nothing":
        return None
    from holdfast.wire.record_batch import decode as decode_messages
    from holdfast.wire.record_batch import decode_values, split_batches

    def values(body: memoryview) -> list[bytes]:
        found: list[bytes] = []
        for batch in split_batches(body):
            found += decode_values(batch)
            batch.release()
        return found

    def messages(body: memoryview) -> list[bytes]:
        found: list[StoredMessage] = []
        for batch in split_batches(body):
            found += decode_messages(batch, 0)
            batch.release()
        return [message.value for message in found]

    return values if decode == "values" else messages


def _check_values(values: Sequence[bytes], expected: int) -> None:
    """Every value that we publish begins with a number of eight digits."""
    if len(values) != expected or not values[0][:8].isdigit():
        raise LoadFailed(f"{len(values)} values where {expected} were expected")

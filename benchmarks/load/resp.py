"""Redis on the wire: XADD commands in RESP, prebuilt."""

import socket

from benchmarks.load.wire import LoadFailed, connect, payload, read_until

# XADD answers with the new id as a bulk string, `$15\r\n1700000000000-0\r\n`: one dollar sign a message.
REPLY_MARKER = b"$"


def command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def xadd(stream: bytes, number: int, entry_id: bytes = b"*") -> bytes:
    return command(b"XADD", stream, entry_id, b"v", payload(number))


def xadds(stream: bytes, count: int) -> bytes:
    return b"".join(xadd(stream, number) for number in range(count))


def dial(port: int) -> socket.socket:
    return connect(port)


def ask(port: int, *parts: bytes) -> bytes:
    """One command whose answer is one line."""
    with connect(port) as connection:
        connection.sendall(command(*parts))
        answer = read_until(connection, b"\r\n")
    if answer.startswith(b"-"):
        raise LoadFailed(answer.decode(errors="replace").strip())
    return answer[1:-2]

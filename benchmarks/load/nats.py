"""NATS on the wire: PUB with a reply subject into a JetStream stream, acknowledgements on that subject."""

import json
import socket
from collections.abc import Mapping
from typing import Any

from benchmarks.load.wire import SOCKET_TIMEOUT_S, LoadFailed, connect, payload, read_until

STREAM = "BENCH"
SUBJECT = "bench"
INBOX = "_INBOX.bench"

# A JetStream acknowledgement is one flat JSON object: one closing brace a message.
REPLY_MARKER = b"}"

_OPTIONS = json.dumps({"verbose": False, "pedantic": False, "protocol": 1, "headers": True}).encode()


def publish(number: int) -> bytes:
    return publish_with_headers(payload(number), {})


def publish_with_headers(body: bytes, headers: Mapping[str, str]) -> bytes:
    """A plain publish where there are none."""
    if not headers:
        return b"PUB %s %s %d\r\n%s\r\n" % (SUBJECT.encode(), INBOX.encode(), len(body), body)
    head = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    sizes = (len(head), len(head) + len(body))
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (SUBJECT.encode(), INBOX.encode(), *sizes, head.encode(), body)


def dial(port: int, inbox: str = INBOX) -> socket.socket:
    connection = connect(port)
    greeting = read_until(connection, b"\r\n")
    if not greeting.startswith(b"INFO "):
        raise LoadFailed(f"not a NATS server: {greeting[:80]!r}")
    connection.sendall(b"CONNECT %s\r\nSUB %s 1\r\nPING\r\n" % (_OPTIONS, inbox.encode()))
    read_until(connection, b"PONG\r\n")
    return connection


def ask(port: int, subject: str, request: dict[str, Any], timeout_s: float = SOCKET_TIMEOUT_S) -> dict[str, Any]:
    """One JetStream API call; a cluster without a leader does not answer at all."""
    body = json.dumps(request).encode()
    with dial(port) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), INBOX.encode(), len(body), body))
        answer = read_until(connection, b"}\r\n")
    decoded: dict[str, Any] = json.loads(answer.partition(b"\r\n")[2])
    if "error" in decoded:
        raise LoadFailed(f"{subject}: {decoded['error']}")
    return decoded


def create_stream(port: int, replicas: int = 1, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
    config = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": replicas}
    ask(port, f"$JS.API.STREAM.CREATE.{STREAM}", config, timeout_s)


def stream(port: int) -> dict[str, Any]:
    """Configuration, state and, in a cluster, who leads and who follows."""
    return ask(port, f"$JS.API.STREAM.INFO.{STREAM}", {})


def stored(port: int) -> int:
    return int(stream(port)["state"]["messages"])

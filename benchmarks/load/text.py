"""Holdfast's text protocol on the wire: PUBLISH lines, prebuilt, and subscribers that never read."""

import socket

from benchmarks.load.wire import LoadFailed, connect, payload, read_until

GREETING = b"CONNACK|Connected to Message Broker\n"
PUBACK = b"PUBACK|Published successfully\n"
SUBACK = b"SUBACK|Subscribed successfully\n"

# Small enough that a stalled subscriber is stalled soon and the kernel does not hide it.
STALLED_RECEIVE_BUFFER_BYTES = 4_096


def dial(port: int) -> socket.socket:
    connection = connect(port)
    greeting = read_until(connection, b"\n")
    if greeting != GREETING:
        raise LoadFailed(f"not a Holdfast text port: {greeting[:80]!r}")
    return connection


def publish(topic: str, number: int = 0) -> bytes:
    return b"PUBLISH|%s|%s\n" % (topic.encode(), payload(number))


def publish_id(topic: str, message_id: str, value: bytes) -> bytes:
    return b"PUBLISH_ID|%s|%s|%s\n" % (message_id.encode(), topic.encode(), value)


def publishes(topic: str, count: int) -> bytes:
    return b"".join(publish(topic, number) for number in range(count))


def subscribe_and_stall(port: int, topic: str) -> socket.socket:
    """A live subscriber that took its acknowledgement and then reads nothing more."""
    connection = dial(port)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_RECEIVE_BUFFER_BYTES)
    connection.sendall(b"SUBSCRIBE|%s\n" % topic.encode())
    answer = read_until(connection, b"\n")
    if answer != SUBACK:
        raise LoadFailed(f"subscribe was answered with {answer[:80]!r}")
    return connection

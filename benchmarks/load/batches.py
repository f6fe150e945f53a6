"""Record batches as a bulk writer makes them: built before the clock starts, with the client's own encoder."""

from benchmarks.load import http
from benchmarks.load.wire import payload
from holdfast.wire.batch_builder import build_values

TIMESTAMP_MS = 1_790_000_000_000


def batch(messages: int, message_bytes: int) -> bytearray:
    return build_values([payload(number, message_bytes) for number in range(messages)], TIMESTAMP_MS)


def request(topic: str, batches: int, messages: int, message_bytes: int) -> bytes:
    """One request with that many batches of that many messages each."""
    return http.publish_batches(topic, [batch(messages, message_bytes)] * batches)

"""Pushes as Queen's clients send them: each connection waits for its answer before it asks again.

Every item has a transaction id that was not used before, a UUID of version 7 as those clients make them, so each
request differs from all others. All but the first 18 characters of its ids stand in it already; one `replace` makes it
another.
"""

import time
from functools import partial

from benchmarks.load import http
from benchmarks.load.pipeline import Pipeline

PAYLOAD_BYTES = 190
_STAMP = b"ssssssss-ssss-7sss"
_FIRST_ID = b"000000000000"


def load(port: int, queue: str, partitions: int, connections: int, items: int, seconds: float) -> Pipeline:
    """So many connections, each with one request of so many items under way."""
    return Pipeline(
        port=port,
        dial=http.dial,
        replies=partial(http.PublishReplies, items),
        request=request(queue, partitions, items),
        messages_per_request=items,
        window=items,
        connections=connections,
        seconds=seconds,
        renewed=partial(_renewed, partitions) if items == 1 else _stamped,
    )


def request(queue: str, partitions: int, items: int) -> bytes:
    """One request, with a mark where its ids are to differ from all others."""
    payload = '"' + "x" * (PAYLOAD_BYTES - 2) + '"'
    pushed = [
        f'{{"queue":"{queue}","partition":"p{number % partitions}","payload":{payload},'
        f'"transactionId":"{_STAMP.decode()}-8000-{number:012x}"}}'
        for number in range(items)
    ]
    return http.post("/api/v1/push", f'{{"items":[{",".join(pushed)}]}}'.encode())


def _stamped(template: bytes, number: int) -> bytes:
    stamp = f"{int(time.time() * 1000):012x}{number & 0xFFF:03x}"
    return template.replace(_STAMP, f"{stamp[:8]}-{stamp[8:12]}-7{stamp[12:]}".encode())


def _renewed(partitions: int, template: bytes, number: int) -> bytes:
    """For one item: a millisecond may have more than 4,096 requests, so the number stands in the id as a whole."""
    made = _stamped(template, number).replace(_FIRST_ID, b"%012x" % (number & 0xFFFFFFFFFFFF))
    return made.replace(b'"p0"', b'"p%d"' % (number % min(10, partitions)))

"""Single requests to single nodes, and all that a node serves: no client in between that would try elsewhere."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.wire.record_batch import header, split_batches
from testkit.history import Place

BATCHES: Final = "application/vnd.holdfast.batches"
_READ_BYTES: Final = 4_000_000
_AGAIN_S: Final = 0.1
T = TypeVar("T")


class Refused(Exception):
    """A node said no; `code` is its reason, `unreachable` where it said nothing."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Reply(NamedTuple):
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    address: str, method: str, path: str, content: object = None, *, accept: str = "application/json", timeout_s: float
) -> Reply:
    """One try. Raises `Refused`."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    headers = {"Accept": accept, "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if content is None else json.dumps(content), headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Refused("unreachable", repr(error)) from error
    finally:
        connection.close()
    if response.status >= 300:
        raise _refusal(response.status, body)
    return Reply(body, {name.lower(): value for name, value in response.getheaders()})


def _refusal(status: int, body: bytes) -> Refused:
    try:
        error = json.loads(body)["error"]
        return Refused(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return Refused(f"http_{status}", body[:200].decode("utf-8", "replace"))


def patiently(deadline: float, ask: Callable[..., T], *args: object) -> T:
    """Ask again until there is an answer. Raises `Refused` after the deadline, of the monotonic clock."""
    while True:
        try:
            return ask(*args)
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def partitions(address: str, timeout_s: float = 5.0) -> list[Place]:
    """Every partition a node knows. Raises `Refused`."""
    topics = request(address, "GET", "/v1/topics", timeout_s=timeout_s).json()["topics"]
    return sorted(Place(topic["topic"], one["partition"]) for topic in topics for one in topic["partitions"])


def stored(address: str, place: Place, timeout_s: float = 15.0) -> list[bytes]:
    """All that a node has of a partition, as stored batches, up to an end it made sure of. Raises `Refused`."""
    return list(_pieces(address, place, timeout_s))


def _pieces(address: str, place: Place, timeout_s: float) -> Iterator[bytes]:
    offset = 0
    path = f"/v1/topics/{place.topic}/partitions/{place.partition}/messages"
    while True:
        query = f"?offset={offset}&max_bytes={_READ_BYTES}"
        data = request(address, "GET", path + query, accept=BATCHES, timeout_s=timeout_s).body
        if not data:
            return
        yield data
        offset = header(split_batches(data)[-1]).next_offset

"""Bytes that rot on disk: never served, reported with the place to go on, and everything around them readable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.http_server import BATCHES, Server, serving
from tests.http.test_http_tail import tailing

READ = "/v1/topics/orders/partitions/0/messages"


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Server]:
    """Three batches of two messages; a bit of the middle one is flipped while the broker is down."""
    with serving(tmp_path / "data") as server:
        for batch in (("a1", "a2"), ("rotten", "b2"), ("c1", "c2")):
            server.publish("orders", *batch)
    flipped = 0
    for segment in (tmp_path / "data" / "topics" / "orders" / "0").glob("*.log"):
        content = bytearray(segment.read_bytes())
        place = content.find(b"rotten")
        if place >= 0:
            content[place] ^= 1
            segment.write_bytes(content)
            flipped += 1
    assert flipped == 1
    with serving(tmp_path / "data") as server:
        yield server


def test_read_of_damaged_messages_says_where_to_go_on(damaged: Server) -> None:
    assert [one["value"] for one in damaged.get(f"{READ}?offset=0&max=2").json["messages"]] == ["a1", "a2"]
    for headers in ({}, {"Accept": BATCHES}):
        refused = damaged.call("GET", f"{READ}?offset=2", headers=headers)
        assert (refused.status, refused.code) == (500, "damaged_data")
        assert refused.json["error"]["next_offset"] == 4
    assert [one["value"] for one in damaged.get(f"{READ}?offset=4").json["messages"]] == ["c1", "c2"]


def test_stream_tells_of_the_gap_and_goes_on(damaged: Server) -> None:
    with tailing(damaged, "?from=earliest") as stream:
        events = stream.take(5)
    assert [event.name for event in events] == ["message", "message", "gap", "message", "message"]
    assert events[2].data == {"partition": 0, "from": 2, "to": 4, "reason": "damaged_data"}
    assert [event.data["value"] for event in events if event.name == "message"] == ["a1", "a2", "c1", "c2"]


def test_cursor_is_taken_past_damaged_messages(damaged: Server) -> None:
    seen = []
    for _ in range(6):
        read = damaged.get("/v1/topics/orders/cursors/billing/messages?max=10").json
        seen += [one["value"] for one in read["messages"]]
        if read["ack"]:
            damaged.call("POST", "/v1/topics/orders/cursors/billing/ack", {"offsets": read["ack"]})
    assert seen == ["a1", "a2", "c1", "c2"]
    assert damaged.get("/v1/topics/orders/cursors/billing").json["lag"] == 0

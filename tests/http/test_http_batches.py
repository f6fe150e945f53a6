"""Record batches in and out, read and written by somebody else's codec as well as ours."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.batches import ForeignRecord, foreign_batch, foreign_records

from tests.http.http_server import BATCHES, Server

PATH = "/v1/topics/orders/partitions/0/batches"
READ = "/v1/topics/orders/partitions/0/messages"
TYPE = {"Content-Type": BATCHES}


def built(*values: bytes, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """A batch as aiokafka builds it."""
    now_ms = int(time.time() * 1000)
    return foreign_batch([ForeignRecord(n, now_ms, key, value, list(headers)) for n, value in enumerate(values)])


def test_batches_of_a_foreign_builder_are_stored_and_read(server: Server) -> None:
    body = built(b"a", b"b") + built(b"c", key=b"k", headers=[("trace", b"1")])
    server.create("orders")
    answer = server.call("POST", PATH, body, TYPE)
    assert answer.json == {
        "results": [
            {"partition": 0, "base_offset": 0, "count": 2, "duplicates": 0},
            {"partition": 0, "base_offset": 2, "count": 1, "duplicates": 0},
        ]
    }
    messages = server.get(READ).json["messages"]
    assert [one["value"] for one in messages] == ["a", "b", "c"]
    assert (messages[2]["key"], messages[2]["headers"]) == ("k", {"trace": "1"})


def test_first_batch_creates_the_topic(server: Server) -> None:
    assert server.call("POST", PATH, built(b"a"), TYPE).json["results"][0]["base_offset"] == 0


def test_stored_batches_are_read_by_a_foreign_decoder(server: Server) -> None:
    server.publish("orders", *map(str, range(1000)))
    server.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": "z", "key": "k", "id": "i"}]})
    answer = server.get(f"{READ}?offset=0", Accept=BATCHES)
    assert answer.headers["content-type"] == BATCHES
    assert answer.headers["holdfast-next-offset"] == "1001"
    assert (answer.headers["holdfast-start-offset"], answer.headers["holdfast-end-offset"]) == ("0", "1001")
    records = foreign_records(answer.body)
    assert [record.offset for record in records] == list(range(1001))
    assert [record.value for record in records] == [*(str(n).encode() for n in range(1000)), b"z"]
    assert records[-1].key == b"k"
    assert dict(records[-1].headers)["holdfast-id"] == b"i"


def test_batch_that_holds_the_offset_begins_before_it(server: Server) -> None:
    server.publish("orders", "a", "b", "c")
    answer = server.get(f"{READ}?offset=2", Accept=BATCHES)
    assert foreign_records(answer.body)[0].offset == 0
    assert answer.headers["holdfast-next-offset"] == "3"
    end = server.get(f"{READ}?offset=3", Accept=BATCHES)
    assert (end.status, end.body, end.headers["holdfast-next-offset"]) == (200, b"", "3")


def test_answer_tells_which_topic_of_the_name_its_batches_are_of(server: Server) -> None:
    created = []
    for _ in range(2):
        server.publish("orders", "a")
        answer = server.get(f"{READ}?offset=0", Accept=BATCHES)
        created.append(server.get("/v1/topics/orders").json["created_ms"])
        assert answer.headers["holdfast-topic-created-ms"] == str(created[-1])
        assert server.call("DELETE", "/v1/topics/orders").status == 204
    assert created[0] < created[1]


def test_ids_in_record_headers_are_recognised(server: Server) -> None:
    server.create("orders")
    batch = built(b"a", headers=[("holdfast-id", b"once")])
    assert server.call("POST", PATH, batch, TYPE).json["results"][0]["duplicates"] == 0
    again = server.call("POST", PATH, batch, TYPE).json["results"][0]
    assert (again["base_offset"], again["duplicates"]) == (0, 1)
    assert [one["id"] for one in server.get(READ).json["messages"]] == ["once"]


def test_one_bad_batch_refuses_the_request_whole(server: Server) -> None:
    good = built(b"good")
    flipped = bytearray(good)
    flipped[-3] ^= 1
    for body in (
        good + bytes(flipped),
        good + good[:-1],
        good + b"\0",
        good[:60],
        b"",
        b"garbage" * 100,
        good[:16] + b"\1" + good[17:],
        good[:22] + b"\1" + good[23:],
    ):
        refused = server.call("POST", PATH, body, TYPE)
        assert (refused.status, refused.code) == (400, "bad_batch"), refused
    server.create("orders") if server.get("/v1/topics/orders").status == 404 else None
    assert server.get(READ).json["messages"] == []


def test_batches_need_their_media_type(server: Server) -> None:
    refused = server.call("POST", PATH, built(b"a"), {"Content-Type": "application/octet-stream"})
    assert (refused.status, refused.code) == (415, "unsupported_media_type")
    assert BATCHES in refused.message


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_refused_and_never_breaks_the_broker(shared_server: Server, body: bytes) -> None:
    refused = shared_server.call("POST", PATH, body, TYPE)
    assert (refused.status, refused.code) == (400, "bad_batch")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_batches_are_refused(shared_server: Server, data: st.DataObject) -> None:
    body = bytearray(built(b"value", b"other", key=b"key", headers=[("name", b"content")]))
    # Before byte 8 stands the base offset and from 12 to 16 the epoch, which are the broker's to write.
    place = data.draw(st.sampled_from([*range(8, 12), *range(16, len(body))]))
    body[place] ^= data.draw(st.integers(1, 255))
    refused = shared_server.call("POST", PATH, bytes(body), TYPE)
    assert (refused.status, refused.code) == (400, "bad_batch")

"""One address before several clusters: nothing is lost, doubled or out of reach, whatever fails behind it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from testkit.http_client import Client
from testkit.wait import wait_until

from holdfast.model.errors import ConfigError
from holdfast.proxy.settings import SLOTS, parse_groups
from tests.proxy.proxies import Brokers, proxying

Group = Callable[[str, int], Brokers]


def test_queues_and_topics_are_spread_over_groups_and_found_again_through_any_proxy(group: Group) -> None:
    a, b = group("a", 1), group("b", 1)
    groups = [f"a={a.addresses}", f"b={b.addresses}"]
    with proxying(groups) as proxy, proxying(list(reversed(groups))) as other:
        ids = [proxy.ask("/create_queue")["queue_id"] for _ in range(6)]
        assert len(set(ids)) == 6 and len({queue_id % SLOTS for queue_id in ids}) == 2
        for place, queue_id in enumerate(ids):
            assert other.ask("/append", queue_id=queue_id, value={"place": place}) == {"message_id": 1}
        read = [proxy.ask("/read", queue_id=queue_id, client_id="c") for queue_id in ids]
        assert [message["value"]["place"] for message in read] == list(range(6))
        assert [other.ask("/read", queue_id=queue_id, client_id="c")["message_id"] for queue_id in ids] == [None] * 6
        # Listings are those of all groups, whole and in pages.
        assert proxy.ask("/get_all_queues") == other.ask("/get_all_queues") == {"queue_ids": sorted(ids)}
        assert proxy.ask("/get_all_queues", limit=6) == {"queue_ids": sorted(ids), "next": None}
        whole = proxy.ask("/get_all_messages")["messages"]
        assert sorted(each["queue_id"] for each in whole) == sorted(ids)
        pages: list[Any] = []
        after: dict[str, Any] = {}
        while True:
            page = other.ask("/get_all_messages", limit=2, **after)
            pages += page["messages"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert pages == whole
        assert Counter(each["queue_id"] for each in other.ask("/get_all_pointers")["pointers"]) == Counter(ids)
        # A request with an id reaches the same group, through whichever proxy it comes.
        made = {each.ask("/create_queue", request_id="r:1")["queue_id"] for each in (proxy, other, proxy)}
        assert len(made) == 1
        # Topics.
        names = [f"topic-{number}" for number in range(4)] + [f"grün/{number} ☃" for number in range(4)]
        for place, name in enumerate(names):
            answer = (proxy, other)[place % 2].call(
                "POST", f"/v1/topics/{quote(name, safe='')}/messages", {"messages": [{"value": name}]}
            )
            assert answer.status == 200, answer
        listed = other.get("/v1/topics").json["topics"]
        assert {each["topic"] for each in listed} >= set(names)
        assert {each["group"] for each in listed if each["topic"] in names} == {"a", "b"}
        for name in names:
            found = proxy.get(f"/v1/topics/{quote(name, safe='')}/partitions/0/messages").json["messages"]
            assert [message["value"] for message in found] == [name]
        assert proxy.get("/v1/topics/nowhere").code == "topic_not_found"
        first = proxy.get(f"/v1/topics/queue-{ids[0]}/partitions/0/messages").json["messages"]
        assert [json.loads(message["value"]) for message in first] == [{"place": 0}]
    # One more group: what there was is where it was. Without a group, what it has is not taken for new.
    with proxying([f"b={b.addresses}"]) as alone:
        theirs = [each["topic"] for each in listed if each["group"] == "a" and each["topic"] in names]
        assert alone.ask("/get_all_queues")["queue_ids"] != sorted(ids)
        refused = alone.call("POST", "/append", {"queue_id": next(i for i in ids if i not in _ids(alone)), "value": 1})
        assert (refused.status, refused.code) == (404, "queue_not_found")
    with proxying([*groups, "c=127.0.0.1:9"], patience_s=0.5) as more:
        for name in names:
            assert more.get(f"/v1/topics/{quote(name, safe='')}").status == 200
        assert more.ask("/read", queue_id=ids[0], client_id="new")["message_id"] == 1
        fresh = more.call("POST", "/v1/topics/fresh/messages", {"messages": [{"value": "x"}]})
        assert (fresh.status, fresh.code) == (503, "no_group_answers")
    assert theirs


def _ids(proxy: Client) -> list[int]:
    ids: list[int] = proxy.call("POST", "/get_all_queues", {}).json["queue_ids"]
    return ids


def test_nothing_is_lost_or_doubled_when_a_node_behind_the_proxy_is_killed(group: Group) -> None:
    nodes = group("n", 3)
    with proxying([f"g={nodes.addresses}"]) as proxy, proxying([f"g={nodes.addresses}"]) as other:
        queue_id = proxy.ask("/create_queue")["queue_id"]
        proxies, count = (proxy, other), 200
        killed = threading.Event()

        def append(value: int) -> int:
            if value == count // 4:
                [leader] = [
                    name
                    for name, process in nodes.processes.items()
                    if process.http.call("POST", "/broker_info", {}).json["is_leader"]
                ]
                nodes.processes[leader].kill()
                killed.set()
            message_id: int = proxies[value % 2].ask("/append", queue_id=queue_id, value=value)["message_id"]
            return message_id

        def read(place: int) -> list[int]:
            found: list[int] = []
            while True:
                message = proxies[place % 2].ask("/read", queue_id=queue_id, client_id="all")
                if message["message_id"] is None:
                    return found
                found.append(message["value"])

        with ThreadPoolExecutor(8) as threads:
            stored = list(threads.map(append, range(count)))
            assert killed.is_set()
            assert sorted(stored) == list(range(1, count + 1))
            read_values = [value for found in threads.map(read, range(4)) for value in found]
        assert Counter(read_values) == Counter(range(count))
        wait_until(lambda: proxy.nodes_up.count(False) == 1, "the proxy notices")
        ready = proxy.get("/ready")
        assert ready.status == 200 and ready.json["ready"]
        metrics = proxy.get("/metrics").body.decode()
        assert "holdfast_proxy_retries_total" in metrics and 'holdfast_proxy_node_up{group="g"' in metrics


def test_listings_have_what_is_there_when_a_group_is_down_and_name_what_is_missing(group: Group) -> None:
    a, b = group("a", 1), group("b", 1)
    with proxying([f"a={a.addresses}", f"b={b.addresses}"], patience_s=2.0) as proxy:
        ids = [proxy.ask("/create_queue")["queue_id"] for _ in range(4)]
        for queue_id in ids:
            proxy.ask("/append", queue_id=queue_id, value=1)
            proxy.ask("/read", queue_id=queue_id, client_id="c")
        slot = next(each.slot for each in proxy.running.groups if each.name == "a")
        there = sorted(queue_id for queue_id in ids if queue_id % SLOTS == slot)
        assert 0 < len(there) < len(ids)
        assert "missing" not in proxy.ask("/get_all_queues")
        for process in b.processes.values():
            process.kill()
        for path, field in (
            ("/get_all_queues", "queue_ids"),
            ("/get_all_messages", "messages"),
            ("/get_all_pointers", "pointers"),
        ):
            for limit in ({}, {"limit": 1}):
                found: list[Any] = []
                after: dict[str, Any] = {}
                while True:
                    page = proxy.ask(path, **limit, **after)
                    found += page[field]
                    missing = page.get("missing", [])
                    if page.get("next") is None:
                        break
                    after = {"after": page["next"]}
                listed = found if path == "/get_all_queues" else [each["queue_id"] for each in found]
                assert sorted(listed) == there, (path, limit)
                assert [each["group"] for each in missing] == ["b"] and "127.0.0.1" in missing[0]["problem"]
        topics = proxy.get("/v1/topics").json
        assert {each["group"] for each in topics["topics"]} == {"a"}
        assert [each["group"] for each in topics["missing"]] == ["b"]
        for process in a.processes.values():
            process.kill()
        for path in ("/get_all_queues", "/get_all_messages", "/get_all_pointers"):
            answer = proxy.call("POST", path, {})
            assert (answer.status, answer.code) == (503, "no_group_answers"), "nothing is there"
        assert proxy.get("/v1/topics").status == 503


def test_what_cannot_be_answered_says_why_and_nothing_hangs() -> None:
    with proxying(["g=127.0.0.1:9"], patience_s=0.3) as proxy:
        wait_until(lambda: not any(proxy.nodes_up), "the proxy knows that nobody is there")
        for path, body in (
            ("/create_queue", {}),
            ("/append", {"queue_id": SLOTS + proxy.running.groups[0].slot, "value": 1}),
            ("/get_all_queues", {}),
        ):
            answer = proxy.call("POST", path, body)
            assert (answer.status, answer.code) == (503, "no_group_answers"), answer
        assert proxy.get("/health").status == 200
        assert proxy.get("/ready").status == 503
        assert proxy.call("GET", "/append").code == "method_not_allowed"
        assert proxy.get("/v1/cluster").code == "not_found"
        assert proxy.call("POST", "/append", {"queue_id": "x", "value": 1}).code == "bad_value"
        assert proxy.call("POST", "/append", {"queue_id": 5, "value": 1}).code == "queue_not_found"
        assert proxy.call("POST", "/apply_append", {"message_id": 1, "queue_id": 1, "value": 1}).status == 409
        told = proxy.call("POST", "/heartbeat", {"leader_id": 1, "leader_url": "http://127.0.0.1:1"})
        assert told.status == 200 and not told.json["changed"]
        foreign = proxy.call("POST", "/create_queue", {}, {"Origin": "http://evil.example"})
        assert (foreign.status, foreign.code) == (403, "cross_origin")
        info = proxy.ask("/broker_info")
        assert not info["is_leader"] and info["groups"][0]["nodes"][0]["is_up"] is False


def test_large_bodies_and_streams_pass_through_piece_by_piece(group: Group) -> None:
    a = group("a", 1)
    with proxying([f"a={a.addresses}"]) as proxy:
        values = ["x" * 1000] * 5000
        body = json.dumps({"messages": [{"value": value} for value in values]}).encode()
        chunked = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        with contextlib.closing(chunked):
            pieces = (body[start : start + 50_000] for start in range(0, len(body), 50_000))
            headers = {"Content-Type": "application/json", "Connection": "keep-alive, X-Hop", "X-Hop": "1"}
            chunked.request("POST", "/v1/topics/big/messages", pieces, headers, encode_chunked=True)
            assert chunked.getresponse().read().count(b"offset") == len(values)
            chunked.request("HEAD", "/v1/topics/big")
            assert chunked.getresponse().read() == b""
            chunked.request("GET", "/v1/topics/big/partitions/0/messages?max=5000&max_bytes=8000000")
            answer = chunked.getresponse()
            assert [message["value"] for message in json.loads(answer.read())["messages"]] == values
        tail = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        with contextlib.closing(tail):
            tail.request("GET", "/v1/topics/big/tail?from=latest")
            stream = tail.getresponse()
            assert stream.status == 200 and stream.readline().startswith(b"retry")
            proxy.call("POST", "/v1/topics/big/messages", {"messages": [{"value": "live"}]})
            lines: list[bytes] = []
            while not any(b"live" in line for line in lines):
                lines.append(stream.readline())
        # Whoever leaves takes no connection with it.
        wait_until(lambda: proxy.running.groups[0].nodes[0].connections <= 3, "connections are given back")


@pytest.mark.parametrize(
    "groups",
    [[], ["a"], ["=127.0.0.1:1"], ["a=127.0.0.1:x"], ["a=h:1", "a=h:2"], ["a=h:1", "b=h:1"], ["a b=h:1"]],
)
def test_groups_that_make_no_sense_are_refused(groups: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_groups(groups)


def test_one_more_group_changes_no_slot() -> None:
    before = {each.name: each.slot for each in parse_groups(["a=h:1", "b=h:2"])}
    after = {each.name: each.slot for each in parse_groups(["c=h:3", "b=h:2", "a=h:1"])}
    assert before.items() <= after.items()

"""`publish` and `subscribe` with addresses as arguments: a plain broker, or two that take over from each other."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.commands import Running, holdfast
from testkit.wait import wait_until

from holdfast.model.limits import MESSAGE_BYTES_MAX
from holdfast.testing.ports import free_port
from tests.cli.program import Broker


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two plain brokers, which know nothing of each other: what the commands do with a pair shows all the same."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with Broker(tmp_path / "first") as first, Broker(tmp_path / "second") as second:
        yield first, second


def values_in(broker: Broker, topic: str) -> list[bytes]:
    with broker.client() as client:
        return [message.value for message in client.read(topic, messages_max=10_000)]


def subscribed(topic: str, *brokers: Broker) -> None:
    """Wait until a subscriber has made the topic: from then on it gets everything."""

    def is_there(broker: Broker) -> bool:
        with broker.client() as client:
            return topic in [each.topic for each in client.topics()]

    wait_until(lambda: all(map(is_there, brokers)), f"the subscriber of {topic} is there")


def test_one_address_is_a_plain_broker(broker: Broker) -> None:
    with Running("subscribe", "plain", broker.text, "--count", "2") as reader:
        subscribed("plain", broker)
        published = holdfast("publish", "plain", "Hello | you", broker.text)
        assert (published.code, published.text) == (0, f"[{broker.text}] plain Hello | you\n")
        assert published.err == "plain: 1 message sent, 1 acknowledged, 0 resent, 0 switches\n"
        assert holdfast("publish", "plain", "again", broker.text, "--id", "x", "--json").json["acknowledged"] == 1
        ended = reader.ended()
    assert (ended.code, ended.lines) == (
        0,
        [f"[{broker.text}] plain Hello | you", f"[{broker.text}] plain again"],
    )


def test_an_empty_address_stands_for_a_broker_that_there_is_not(tmp_path: Path) -> None:
    port, ready = free_port(), tmp_path / "ready.json"
    both = (f"localhost:{port}", "")
    with Running("primary", str(port), "", "--memory", "--ready-file", str(ready)) as alone:
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "it serves")
        with Running("subscribe", "topicA", *both, "--count", "1") as reader:
            published = holdfast("publish", "topicA", "Hello", *both)
            while published.code == 0 and reader.process.poll() is None:
                published = holdfast("publish", "topicA", "Hello", *both)
            ended = reader.ended()
        assert published.code == 0, published
        assert ended.lines == [f"[{both[0]}] topicA Hello"]
        assert alone.end(signal.SIGTERM).code == 0


def test_seeds_commands_survive_the_death_of_the_first_broker(two_brokers: tuple[Broker, Broker]) -> None:
    first, second = two_brokers
    both = (first.text, second.text)
    with Running("subscribe", "topicC", *both, "--count", "60") as reader:
        subscribed("topicC", first, second)
        with Running("publish", "topicC", "--rate", "30", "--sequence", "--for", "2s", *both) as publishing:
            assert publishing.line().decode() == f"[{first.text}] topicC 1\n"
            first.kill()
            published = publishing.ended()
        ended = reader.ended()
    assert published.code == 0, published
    assert f"lost the broker at {first.text}" in published.err
    assert re.search(r"topicC: 60 messages sent, 60 acknowledged, \d+ resent, 1 switch\n", published.err)
    assert ended.code == 0 and f"lost the broker at {first.text}" in ended.err
    numbered_lines = enumerate(ended.lines, 1)
    sources = [line.removeprefix("[").removesuffix(f"] topicC {number}") for number, line in numbered_lines]
    assert len(sources) == 60 and set(sources) == {*both}, "each once, and in order"
    assert (sources[0], sources[-1]) == both
    # What was kept went over as well: the second one has everything that the publisher still had.
    assert values_in(second, "topicC")[-1] == b"60"


def test_publisher_is_told_when_nobody_takes_its_message(own_broker: Broker) -> None:
    with Running("publish", "gone", "--sequence", "--rate", "20", own_broker.text) as publishing:
        publishing.line()
        own_broker.kill()
        # Until it has noticed; then it is told to leave, with what it has.
        assert publishing.process.stderr is not None
        assert b"lost the broker" in publishing.process.stderr.readline()
        publishing.process.send_signal(signal.SIGINT)
        ended = publishing.ended()
    assert ended.code == 130
    sent, acknowledged = map(int, re.findall(r"gone: (\d+) messages sent, (\d+) acknowledged", ended.err)[0])
    assert acknowledged <= sent and "Traceback" not in ended.err


def test_refused_message_is_exit_code_1_with_the_brokers_own_code(broker: Broker) -> None:
    ended = holdfast("publish", "big", "--whole", broker.text, "-", given=b"x" * 2_000_000)
    assert ended.code == 2 and "is no address" in ended.err, "an address stands behind the message"
    ended = holdfast("publish", "big", "-", broker.text, "--whole", given=b"x" * (MESSAGE_BYTES_MAX + 1))
    assert ended.code == 1 and "[too_large]" in ended.err and "no message had been acknowledged" in ended.err
    ended = holdfast("publish", "big", "-", broker.text, "--whole", given=b"two\nlines")
    assert ended.code == 1 and "[bad_message]" in ended.err and "Traceback" not in ended.err


def test_lines_of_standard_input_and_of_a_file_keep_their_order(broker: Broker, tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(3000))
    assert holdfast("publish", "lines", "-", broker.text, given=lines).code == 0
    (tmp_path / "more").write_bytes(b"a\nb\n")
    described = holdfast("publish", "lines", "--file", str(tmp_path / "more"), broker.text, "--json").json
    assert (described["topic"], described["sent"], described["acknowledged"]) == ("lines", 2, 2)
    assert values_in(broker, "lines") == [*lines.splitlines(), b"a", b"b"]


def test_json_says_broker_id_and_value(broker: Broker) -> None:
    with Running("subscribe", "json", broker.text, "--json", "--count", "2") as reader:
        subscribed("json", broker)
        paced = holdfast("publish", "json", "--sequence", "--rate", "100", "--count", "1", broker.text, "--json")
        with broker.client() as client:
            client.publish("json", b"\xff\n", id="a|b")
        first, second = reader.ended().json_lines
    (published,) = paced.json_lines
    assert published == {"topic": "json", "id": first["id"], "broker": broker.text} and paced.err == ""
    assert first == {"broker": broker.text, "topic": "json", "id": first["id"], "value": "1"}
    assert second == {"broker": broker.text, "topic": "json", "id": "a|b", "base64": "/wo="}


def test_reader_under_a_name_goes_on_where_it_left(broker: Broker) -> None:
    with Running("subscribe", "named", broker.text, "--as", "billing", "--count", "1") as reader:
        subscribed("named", broker)
        holdfast("publish", "named", "1", broker.text)
        assert reader.ended().lines == [f"[{broker.text}] named 1"]
    holdfast("publish", "named", "2", broker.text)
    ended = holdfast("subscribe", "named", broker.text, "--as", "billing", "--count", "1", "--timeout", "20s")
    assert ended.lines == [f"[{broker.text}] named 2"]


def test_too_few_messages_in_time_and_signals_are_exit_codes(broker: Broker) -> None:
    ended = holdfast("subscribe", "silent", broker.text, "--count", "1", "--timeout", "300ms")
    assert ended.code == 1 and "0 messages of 1 came" in ended.err
    for how, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with Running("subscribe", f"silent-{code}", broker.text) as reader:
            subscribed(f"silent-{code}", broker)
            ended = reader.end(how)
        assert (ended.code, ended.err) == (code, "")


def test_environment_does_not_stand_in_the_way_of_addresses(broker: Broker) -> None:
    ended = holdfast("publish", "env", "x", broker.text, env={"HOLDFAST_SERVER": "127.0.0.1:1"})
    assert ended.code == 0, ended


def test_nobody_there_says_what_to_do() -> None:
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    for command in (("publish", "t", "x"), ("subscribe", "t")):
        ended = holdfast(*command, first, second)
        assert ended.code == 1 and len(ended.err.splitlines()) == 1
        assert f"no broker answers at {first} (Connection refused), {second} (Connection refused)" in ended.err
        assert "holdfast primary" in ended.err


def test_port_that_is_taken_is_said_before_the_other_broker_is_there(broker: Broker, tmp_path: Path) -> None:
    port = broker.text.rpartition(":")[2]
    ended = holdfast("backup", port, f"localhost:{free_port()}", "--data", str(tmp_path / "data"))
    assert ended.code == 1 and "for text: it is in use" in ended.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("8080", "localhost:8080"), "is this broker itself"),
        (("8080", "localhost:8081", "--memory", "--data", "here"), "no use for --data"),
    ],
)
def test_impossible_pair_is_refused(arguments: tuple[str, ...], said: str) -> None:
    ended = holdfast("primary", *arguments)
    assert ended.code == 1 and said in ended.err and "[bad_config]" in ended.err


def test_http_port_in_place_of_the_text_port(broker: Broker) -> None:
    for command in (("publish", "t", "x"), ("subscribe", "t")):
        ended = holdfast(*command, broker.server)
        assert ended.code == 1 and "not the text port" in ended.err and "[wrong_port]" in ended.err
        assert "is an HTTP port" in ended.err and f"use `--server {broker.server}`" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("publish", "t", "Hello", "world"), "is no address"),
        (("publish", "t", "x", "a:1", "b:2", "c:3"), "3 addresses are too many"),
        (("publish", "t", "x", "a:1", "a:1"), "both addresses are the same"),
        (("publish", "t", "a:1", "b:2"), "what is to be published"),
        (("publish", "t", "x", "a:1", "--server", "b:1"), "not both"),
        (("publish", "t", "x", "a:1", "--key", "k"), "those need --server"),
        (("publish", "t", "--sequence", "a:1", "b:2", "c:3"), "3 addresses are too many"),
        (("publish", "t", "x", "--sequence", "a:1"), "give one of"),
        (("publish", "t", "x", "--retain", "5"), "for a pair"),
        (("publish", "t", "x", "--ack-timeout-ms", "5"), "for a pair"),
        (("subscribe", "t", "nowhere"), "is no address"),
        (("subscribe", "t", ""), "the address is empty"),
        (("publish", "t", "x", "", ""), "the address is empty"),
        (("backup", "8081", ""), "a backup has a primary"),
        (("subscribe", "t", "a:1", "b:2", "c:3"), "3 addresses are too many"),
        (("subscribe", "t", "a:1", "--server", "b:1"), "not both"),
        (("subscribe", "t", "a:1", "--from", "earliest"), "--from needs --server"),
    ],
)
def test_wrong_input_is_a_clear_sentence(arguments: tuple[str, ...], said: str) -> None:
    ended = holdfast(*arguments)
    assert ended.code == 2 and said in ended.err, ended


def test_acknowledgement_timeout_and_retained_messages_are_what_the_options_say(
    two_brokers: tuple[Broker, Broker],
) -> None:
    first, second = two_brokers
    options = ("--rate", "50", "--count", "30", "--retain", "2", "--ack-timeout-ms", "200", "--json")
    with Running("publish", "kept", "--sequence", *options, first.text, second.text) as publishing:
        for number in range(5):
            assert json.loads(publishing.line())["broker"] == first.text, number
        first.kill()
        ended = publishing.ended()
    assert ended.code == 0
    # Acknowledged before the switch or after it; the second one got at most two of the former.
    before = 5 + [each["broker"] for each in ended.json_lines].count(first.text)
    assert 30 - before <= len(values_in(second, "kept")) <= 30 - before + 2

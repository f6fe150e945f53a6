"""Messages in through `publish`, out through `subscribe`, and nothing changed on the way."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from pathlib import Path

import pytest
from testkit.commands import holdfast
from testkit.wait import wait_until

from holdfast.cli.reading import Reader
from holdfast.model.errors import RemoteError
from holdfast.model.limits import MESSAGE_BYTES_MAX
from holdfast.testing.ports import free_port
from tests.cli.program import Broker, numbered


def offset_of(broker: Broker, topic: str, name: str) -> int:
    with broker.client() as client:
        return client.cursor(topic, name).partitions[0].offset


def messages_in(broker: Broker, topic: str) -> int:
    with broker.client() as client:
        return sum(each.messages for each in client.topics() if each.topic == topic)


def test_one_message_with_everything(broker: Broker) -> None:
    options = ("--key", "customer-17", "--id", "order-17", "--header", "source=shop", "--header", "empty=")
    first = broker.ok("publish", "one", "größer", *options)
    assert first.text == "one/0 at offset 0\n"
    again = broker.ok("publish", "one", "größer", *options)
    assert again.text == "one/0 at offset 0 (was there before)\n"
    (message,) = broker.ok("subscribe", "one", "--from", "earliest", "--count", "1", "--json").json_lines
    assert message.pop("timestamp") > 1_600_000_000_000
    assert message == {
        "partition": 0,
        "offset": 0,
        "id": "order-17",
        "key": "customer-17",
        "value": "größer",
        "headers": {"source": "shop", "empty": ""},
    }


def test_binary_lines_come_out_as_they_went_in(broker: Broker) -> None:
    lines = [bytes(set(range(256)) - {10}), b"", b"\xff\xfe", b"carriage\r", b"no end"]
    published = broker.ok("publish", "binary", "--json", given=b"\n".join(lines)).json
    assert published["messages"] == 5
    assert published["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 4, "messages": 5}]
    raw = broker.ok("subscribe", "binary", "--from", "earliest", "--count", "5")
    assert raw.out == b"\n".join(lines) + b"\n"
    described = broker.ok("subscribe", "binary", "--from", "earliest", "--count", "5", "--json").json_lines
    assert base64.b64decode(described[0]["base64"]) == lines[0]
    assert described[1]["value"] == ""


def test_a_whole_file_is_one_message(broker: Broker, tmp_path: Path) -> None:
    content = os.urandom(100_000) + b"\n\n"
    file = tmp_path / "picture"
    file.write_bytes(content)
    broker.ok("publish", "whole", "--whole", "--file", str(file))
    assert broker.ok("subscribe", "whole", "--from", "earliest", "--count", "1").out == content + b"\n"


def test_many_lines_keep_their_order(broker: Broker) -> None:
    published = broker.ok("publish", "many", "-", given=numbered(100_000))
    assert published.text.startswith("published 100,000 messages to many (offsets in partition 0: 0 to 99999)")
    with broker.running("subscribe", "many", "--from", "earliest") as reading:
        assert reading.process.stdout is not None
        assert reading.process.stdout.read(len(numbered(100_000))) == numbered(100_000)
    tail = broker.ok("subscribe", "many", "--from", "99998", "--count", "2")
    assert tail.lines == ["99999", "100000"]
    recent = broker.ok("subscribe", "many", "--from", "-10m", "--count", "3")
    assert recent.lines == ["1", "2", "3"]


def test_sequence_at_a_rate_is_the_test_publisher(broker: Broker) -> None:
    paced = broker.ok("publish", "sequence", "--sequence", "--rate", "50", "--for", "400ms", "--json")
    assert [each["offset"] for each in paced.json_lines] == list(range(20))
    counted = broker.ok("publish", "sequence", "--sequence", "--rate", "1000/s", "--count", "3")
    assert counted.lines == [f"sequence/0 at offset {offset}" for offset in (20, 21, 22)]
    assert "published 3 messages to sequence" in counted.err
    received = broker.ok("subscribe", "sequence", "--from", "earliest", "--count", "23")
    assert received.lines == [*map(str, range(1, 21)), "1", "2", "3"]


def test_refused_line_says_how_many_were_acknowledged_before(broker: Broker) -> None:
    with broker.running("publish", "refused", stdin=subprocess.PIPE) as publishing:
        assert publishing.process.stdin is not None
        publishing.process.stdin.write(b"first\nsecond\n")
        publishing.process.stdin.flush()
        wait_until(lambda: messages_in(broker, "refused") == 2, "the first lines are stored")
        publishing.process.stdin.write(b"x" * (MESSAGE_BYTES_MAX + 1) + b"\n")
        ended = publishing.ended()
    assert ended.code == 1
    assert "2 messages had been acknowledged before [too_large]" in ended.err
    assert messages_in(broker, "refused") == 2


def test_durable_subscriber_goes_on_where_it_left(broker: Broker) -> None:
    broker.ok("publish", "durable", given=numbered(6))
    first = broker.ok("subscribe", "durable", "--as", "reader", "--from", "earliest", "--count", "2")
    assert first.lines == ["1", "2"]
    assert offset_of(broker, "durable", "reader") == 2
    second = broker.ok("subscribe", "durable", "--as", "reader", "--count", "4")
    assert second.lines == ["3", "4", "5", "6"]
    assert offset_of(broker, "durable", "reader") == 6


def test_ctrl_c_leaves_quietly_with_everything_acknowledged(broker: Broker) -> None:
    broker.ok("publish", "interrupted", given=numbered(5))
    with broker.running("subscribe", "interrupted", "--as", "reader", "--from", "earliest") as reading:
        assert [reading.line() for _ in range(5)] == [b"%d\n" % number for number in range(1, 6)]
        ended = reading.end(signal.SIGINT)
    assert (ended.code, ended.err) == (130, "")
    assert offset_of(broker, "interrupted", "reader") == 5


def test_sigterm_leaves_with_everything_acknowledged(broker: Broker) -> None:
    broker.ok("publish", "terminated", given=numbered(5))
    with broker.running("subscribe", "terminated", "--as", "reader", "--from", "earliest", "--json") as reading:
        for _ in range(5):
            reading.line()
        ended = reading.end(signal.SIGTERM)
    assert (ended.code, ended.err) == (143, "")
    assert offset_of(broker, "terminated", "reader") == 5


def test_reader_that_has_seen_enough_ends_the_command_quietly(broker: Broker) -> None:
    broker.ok("publish", "headed", given=numbered(100_000))
    with broker.running("subscribe", "headed", "--from", "earliest") as reading:
        assert reading.line() == b"1\n"
        assert reading.process.stdout is not None and reading.process.stderr is not None
        reading.process.stdout.close()
        assert reading.process.wait(60) == 141
        assert reading.process.stderr.read() == b""


def test_too_few_messages_in_time_is_an_exit_code(broker: Broker) -> None:
    broker.ok("publish", "few", "only")
    ended = broker.run("subscribe", "few", "--from", "earliest", "--count", "2", "--timeout", "2s")
    assert (ended.code, ended.out) == (1, b"only\n")
    assert "1 message of 2 came, then none for 2s" in ended.err


def test_subscriber_and_publisher_outlive_a_killed_broker(own_broker: Broker) -> None:
    with own_broker.running("subscribe", "outlived", "--from", "earliest") as reading:
        with own_broker.running("publish", "outlived", "--sequence", "--rate", "50", "--count", "100") as publishing:
            assert reading.line() == b"1\n"
            own_broker.kill()
            own_broker.start()
            published = publishing.ended()
        received = [int(reading.line()) for _ in range(99)]
        ended = reading.end(signal.SIGINT)
    assert published.code == 0, published
    assert received == list(range(2, 101))
    assert ended.code == 130
    assert "lost the broker at" in ended.err and "Traceback" not in ended.err


def test_nobody_there_says_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    for command in (("publish", "t", "x"), ("subscribe", "t"), ("topics", "list")):
        ended = holdfast(*command, env={"HOLDFAST_SERVER": address})
        assert ended.code == 1
        assert f"no broker answers at {address} (Connection refused); start one with `holdfast serve`" in ended.err
        assert len(ended.err.splitlines()) == 1


def test_text_port_in_place_of_the_http_port(broker: Broker) -> None:
    ended = holdfast("publish", "t", "x", "--server", broker.text)
    assert ended.code == 1 and "text port" in ended.err and "[wrong_port]" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("publish", "t", "x", "--rate", "0"), "is no rate"),
        (("publish", "t", "x", "--rate", "fast"), "is no rate"),
        (("publish", "t", "x", "--for", "40"), "is no duration"),
        (("publish", "t", "x", "--header", "noequals"), "is no header"),
        (("publish", "t", "--sequence", "--id", "a"), "--id names one message"),
        (("publish", "t", "x", "--sequence"), "give one of"),
        (("publish", "t", "--file", "/nowhere/at/all"), "does not exist"),
        (("subscribe", "t", "--from", "yesterday"), "is no place to start"),
        (("subscribe", "t", "--timeout", "-5s"), "is no duration"),
    ],
)
def test_wrong_input_is_a_clear_sentence(arguments: tuple[str, ...], said: str) -> None:
    ended = holdfast(*arguments)
    assert ended.code == 2 and said in ended.err, ended


def test_bad_topic_name_is_told_with_its_code(broker: Broker) -> None:
    ended = broker.run("publish", "a,b", "x")
    assert ended.code == 1 and "[bad_topic]" in ended.err


class _WithoutMajority:
    """A subscription whose brokers miss their majority for longer than the client tries."""

    def __init__(self, code: str) -> None:
        self.tries = 0
        self._code = code

    async def take(self, messages_max: int, timeout_s: float | None) -> list[object]:
        self.tries += 1
        if self.tries < 3:
            raise RemoteError(self._code, "n2 and n3 are missing", 503)
        return []


async def test_subscriber_waits_for_a_majority_as_for_a_broker() -> None:
    away = _WithoutMajority("no_quorum")
    await Reader("orders", None, count=1, timeout_s=None, as_json=False).print_some(away)  # type: ignore[arg-type]
    assert away.tries == 3
    removed = _WithoutMajority("node_removed")
    with pytest.raises(RemoteError):
        await Reader("orders", None, count=1, timeout_s=None, as_json=False).print_some(removed)  # type: ignore[arg-type]


def test_callback_to_a_name_that_leads_nowhere_allowed_is_warned_about(tmp_path: Path) -> None:
    with Broker(tmp_path, "--callback-networks", "10.0.0.0/8") as own:
        made = own.ok("subscribe", "orders", "--callback", "localhost:9999")
        assert "nothing is delivered to localhost:9999 for now: callbacks may not go to" in made.err
        assert own.run("subscriptions", "list", "nosuch").code == 1

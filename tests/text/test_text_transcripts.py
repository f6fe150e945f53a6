"""Every packet as a transcript with a real broker: what a user types and what comes back, netcat included."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.text_client import CONNACK, PUBACK, SUBACK, UNSUBACK, TextClient
from testkit.wait import wait_until

MESSAGE_BYTES_MAX = 10_000  # of the broker these tests share


def test_publisher_is_greeted_and_acknowledged(broker: BrokerProcess, topic: str) -> None:
    with TextClient(broker.text_address, greeted=False) as client:
        client.expect(CONNACK)
        client.say(f"PUBLISH|{topic}|hello".encode())
        client.expect(PUBACK)
    assert broker.stored_values(topic) == [b"hello"]


def test_subscriber_gets_what_is_published_after_it(broker: BrokerProcess, topic: str) -> None:
    with broker.connect() as publisher, broker.connect() as subscriber:
        assert publisher.ask(f"PUBLISH|{topic}|before".encode()) == PUBACK
        assert subscriber.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        for i in range(3):
            assert publisher.ask(f"PUBLISH|{topic}|{i}".encode()) == PUBACK
        assert subscriber.lines(3) == [f"MESSAGE|{topic}|{i}".encode() for i in range(3)]
        assert subscriber.is_quiet()


def test_subscriber_to_a_topic_that_does_not_exist_yet_misses_nothing(broker: BrokerProcess, topic: str) -> None:
    with broker.connect() as publisher, broker.connect() as subscriber:
        assert subscriber.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        assert publisher.ask(f"PUBLISH|{topic}|first".encode()) == PUBACK
        subscriber.expect(f"MESSAGE|{topic}|first".encode())


def test_unsubscribed_connection_gets_nothing_more(broker: BrokerProcess, topic: str) -> None:
    with broker.connect() as client:
        assert client.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        assert client.ask(f"UNSUBSCRIBE|{topic}".encode()) == UNSUBACK
        assert client.ask(f"PUBLISH|{topic}|unseen".encode()) == PUBACK
        assert client.is_quiet()
        client.say(f"UNSUBSCRIBE|{topic}".encode())
        client.expect_error("not_subscribed")
        assert client.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        client.say(f"PUBLISH|{topic}|seen".encode())
        assert sorted(client.lines(2)) == sorted([PUBACK, f"MESSAGE|{topic}|seen".encode()])


def test_subscribing_twice_delivers_once(broker: BrokerProcess, topic: str) -> None:
    with broker.connect() as client:
        for _ in range(2):
            assert client.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        client.say(f"PUBLISH|{topic}|once".encode())
        assert sorted(client.lines(2)) == sorted([PUBACK, f"MESSAGE|{topic}|once".encode()])
        assert client.is_quiet()


def test_resend_with_the_same_id_is_acknowledged_and_stored_once(broker: BrokerProcess, topic: str) -> None:
    with broker.connect() as client:
        for _ in range(3):
            assert client.ask(f"PUBLISH_ID|order-17|{topic}|only once".encode()) == PUBACK
        assert client.ask(f"PUBLISH_ID|order-18|{topic}|another|with bars".encode()) == PUBACK
    assert broker.stored_values(topic) == [b"only once", b"another|with bars"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_commands_are_understood_in_any_case_and_with_either_line_end(
    broker: BrokerProcess, topic: str, end: bytes
) -> None:
    name = topic.encode()
    with broker.connect() as client:
        for line, answer in [
            (b"ping", b"PONG"),
            (b"PING||", b"PONG"),
            (b"Heartbeat", b"HEARTBEAT_ACK"),
            (b"publish|%b|x" % name, PUBACK),
            (b"Publish_Id|i-%b|%b|y" % (end.hex().encode(), name), PUBACK),
            (b"subscribe|%b" % name, SUBACK),
            (b"unSUBscribe|%b||" % name, UNSUBACK),
            (b"subscribe|%b||" % name, SUBACK),
            (b"unsubscribe|%b" % name, UNSUBACK),
        ]:
            client.send(line + end)
            client.expect(answer)
    assert broker.stored_values(topic) == [b"x", b"y"]


PAYLOADS = {
    "empty": b"",
    "bar": b"|",
    "bars": b"a|b|c|",
    "only bars": b"|||",
    "spaces": b" spaces ",
    "not UTF-8": b"\xff\xfe\x00\x80",
    "carriage returns": b"\rinside\rof it",
    "UTF-8": "Grüße 🙂".encode(),
    "a command": b"PUBLISH|x|y",
    "largest": b"x" * MESSAGE_BYTES_MAX,
}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payload_arrives_byte_for_byte(broker: BrokerProcess, topic: str, payload: str) -> None:
    value = PAYLOADS[payload]
    with broker.connect() as client:
        assert client.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        client.say(b"PUBLISH|%b|%b" % (topic.encode(), value))
        assert sorted(client.lines(2)) == sorted([PUBACK, b"MESSAGE|%b|%b" % (topic.encode(), value)])
    assert broker.stored_values(topic) == [value]


@pytest.mark.parametrize("payload", [b"two\nlines", b"\n", b"end\n", b"\xff\n\x00"])
def test_payload_with_a_line_break_arrives_whole(broker: BrokerProcess, topic: str, payload: bytes) -> None:
    """It cannot be a line of the protocol; cut in pieces it would look like other packets."""
    with broker.connect() as client:
        assert client.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        broker.publish_http(topic, b"plain", payload, b"plain again")
        encoded = base64.b64encode(payload)
        client.expect(f"MESSAGE|{topic}|plain".encode())
        client.expect(f"MESSAGE_BASE64|{topic}|".encode() + encoded)
        client.expect(f"MESSAGE|{topic}|plain again".encode())


def test_messages_with_binary_keys_are_delivered(broker: BrokerProcess, topic: str) -> None:
    """Keys are bytes of their owner's choosing; none of them may make a batch unreadable."""
    with broker.connect() as client:
        assert client.ask(f"SUBSCRIBE|{topic}".encode()) == SUBACK
        key = base64.b64encode(b"\xff" * 12).decode()
        messages = [{"value": f"{i}", "key_base64": key} for i in range(8)]
        status, answer = broker.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        if status == 400 and b"key_base64" in answer:
            # Keys are text over JSON: this one has as many bytes with the high bit set.
            messages = [{"value": f"{i}", "key": "\u07ff" * 6} for i in range(8)]
            broker.json("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        assert client.lines(8) == [f"MESSAGE|{topic}|{i}".encode() for i in range(8)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"DANCE", "bad_command"),
        (b"DANCE|t|x", "bad_command"),
        (b"PUBLISH", "bad_command"),
        (b"PUBLISH|t", "bad_command"),
        (b"PUBLISH||x", "bad_topic"),
        (b"PUBLISH|no,path|x", "bad_topic"),
        (b"PUBLISH|..|x", "bad_topic"),
        (b"PUBLISH|\xff\xff|x", "bad_topic"),
        (b"PUBLISH|" + b"t" * 201 + b"|x", "bad_topic"),
        (b"PUBLISH|t|" + b"x" * (MESSAGE_BYTES_MAX + 1), "too_large"),
        (b"PUBLISH_ID|a|t", "bad_command"),
        (b"PUBLISH_ID||t|x", "bad_id"),
        (b"PUBLISH_ID|" + b"i" * 251 + b"|t|x", "bad_id"),
        (b"PUBLISH_ID|a\tb|t|x", "bad_id"),
        (b"PUBLISH_ID|a|no,path|x", "bad_topic"),
        (b"SUBSCRIBE", "bad_command"),
        (b"SUBSCRIBE|a ", "bad_topic"),
        (b"SUBSCRIBE|t|bad name", "bad_cursor"),
        (b"SUBSCRIBE|t|name|more", "bad_command"),
        (b"UNSUBSCRIBE", "bad_command"),
        (b"UNSUBSCRIBE|never", "not_subscribed"),
        (b"PING|x", "bad_command"),
        (b"\x00\x01\x02", "bad_command"),
    ],
)
def test_error_has_its_code_and_the_connection_goes_on(broker: BrokerProcess, line: bytes, code: str) -> None:
    with broker.connect() as client:
        client.say(line)
        client.expect_error(code)
        assert client.ask(b"PING") == b"PONG"


def test_empty_lines_are_a_keyboards_and_get_no_answer(broker: BrokerProcess) -> None:
    with broker.connect() as client:
        client.send(b"\n\r\n\n")
        assert client.ask(b"PING") == b"PONG"


def test_different_ids_that_are_no_text_are_not_taken_for_one(broker: BrokerProcess, topic: str) -> None:
    """Both are acknowledged or refused; acknowledged and thrown away is a lost message."""
    name = topic.encode()
    with broker.connect() as client:
        ids = (b"\xff", b"\xfe")
        answers = [client.ask(b"PUBLISH_ID|%b|%b|%b" % (each, name, each.hex().encode())) for each in ids]
    acknowledged = answers.count(PUBACK)
    assert acknowledged + sum(answer.startswith(b"ERROR|bad_id|") for answer in answers) == 2
    stored = broker.stored_values(topic) if topic in broker.topics() else []
    assert len(stored) == acknowledged


def test_nothing_of_a_deleted_topic_is_delivered_under_its_name(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    with broker.connect() as client:
        assert client.ask(b"SUBSCRIBE|" + name) == SUBACK
        client.say(b"PUBLISH|%b|old" % name)
        assert sorted(client.lines(2)) == sorted([PUBACK, b"MESSAGE|%b|old" % name])
        assert broker.call("DELETE", f"/v1/topics/{topic}")[0] == 204
        client.expect_error("topic_not_found")
        assert client.ask(b"SUBSCRIBE|" + name) == SUBACK
        client.say(b"PUBLISH|%b|new" % name)
        assert sorted(client.lines(2)) == sorted([PUBACK, b"MESSAGE|%b|new" % name])


def test_ack_dialect_says_less_and_loses_nothing(data: Path, topic: str) -> None:
    name = topic.encode()
    with BrokerProcess(data, "--text-dialect", "ack") as broker, broker.connect(greeted=False) as client:
        assert client.is_quiet(), "this dialect does not greet"
        client.say(b"SUBSCRIBE|" + name)
        assert client.is_quiet(), "this dialect does not acknowledge a subscription"
        client.say(b"PUBLISH|%b|hello | world" % name)
        assert sorted(client.lines(2)) == sorted([b"ACK", b"hello | world"])
        client.say(b"PUBLISH_ID|1|%b|x" % name, b"PUBLISH_ID|1|%b|x" % name)
        assert sorted(client.lines(3)) == [b"ACK", b"ACK", b"x"]
        client.say(b"UNSUBSCRIBE|" + name, b"PING", b"DANCE")
        client.expect(b"PONG")
        client.expect_error("bad_command")
        broker.publish_http(topic, b"unseen")
        client.say(b"SUBSCRIBE|" + name, b"PING")
        client.expect(b"PONG")
        broker.publish_http(topic, b"a\nb")
        client.expect(b"MESSAGE_BASE64|%b|" % name + base64.b64encode(b"a\nb"))


def test_anybody_can_speak_it_with_netcat(broker: BrokerProcess, topic: str) -> None:
    if shutil.which("nc") is None:
        pytest.skip("there is no nc")
    host, port = broker.text_address
    said = b"PUBLISH|%b|from a shell\nping\nPUBLISH_ID|1|%b|and again\nNONSENSE\n" % (topic.encode(), topic.encode())
    done = subprocess.run(["nc", "-N", host, str(port)], input=said, capture_output=True, timeout=20, check=True)
    lines = done.stdout.splitlines()
    assert lines[:4] == [CONNACK, PUBACK, b"PONG", PUBACK]
    assert lines[4].startswith(b"ERROR|bad_command|") and len(lines) == 5
    assert broker.stored_values(topic) == [b"from a shell", b"and again"]


def test_netcat_subscriber_sees_messages_as_they_come(broker: BrokerProcess, topic: str) -> None:
    if shutil.which("nc") is None:
        pytest.skip("there is no nc")
    host, port = broker.text_address
    process = subprocess.Popen(["nc", host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"SUBSCRIBE|{topic}|shell\n".encode())
        process.stdin.flush()
        assert [process.stdout.readline().strip() for _ in range(2)] == [CONNACK, SUBACK]
        broker.publish_http(topic, b"one", b"two")
        assert process.stdout.readline() == f"MESSAGE|{topic}|one\n".encode()
        assert process.stdout.readline() == f"MESSAGE|{topic}|two\n".encode()
        path = f"/v1/topics/{topic}/cursors/shell"
        wait_until(lambda: broker.json("GET", path)["lag"] == 0, "the subscription remembers what it delivered")
    finally:
        process.kill()
        process.communicate()

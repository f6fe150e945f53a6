"""Looking after topics and cursors."""

from __future__ import annotations

from tests.cli.program import Broker, numbered


def test_topic_from_creation_to_deletion(broker: Broker) -> None:
    options = ("--partitions", "3", "--retention", "7d", "--retention-bytes", "10GB")
    created = broker.ok("topics", "create", "cared-for", *options)
    assert created.text == "created cared-for with 3 partitions; kept 7d or 10.0 GB a partition\n"
    described = broker.ok("topics", "describe", "cared-for", "--json").json
    assert described["retention_ms"] == 7 * 86_400_000
    assert described["retention_bytes"] == 10_000_000_000
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]

    again = broker.run("topics", "create", "cared-for")
    assert again.code == 1 and "[topic_exists]" in again.err

    broker.ok("publish", "cared-for", given=numbered(10))
    assert "next offset" in broker.ok("topics", "describe", "cared-for").text
    (listed,) = [each for each in broker.ok("topics", "list", "--json").json_lines if each["topic"] == "cared-for"]
    assert listed["messages"] == 10

    asked = broker.run("topics", "delete", "cared-for")
    assert asked.code == 2 and "add --yes" in asked.err
    deleted = broker.ok("topics", "delete", "cared-for", "--yes")
    assert deleted.text == "deleted cared-for with 10 messages\n"
    gone = broker.run("topics", "describe", "cared-for")
    assert gone.code == 1 and "[topic_not_found]" in gone.err
    assert "cared-for" not in broker.ok("topics", "list").text


def test_keys_and_partitions(broker: Broker) -> None:
    broker.ok("topics", "create", "parted", "--partitions", "4")
    keyed = [broker.ok("publish", "parted", f"m{n}", "--key", "same", "--json").json for n in range(2)]
    (first,), (second,) = (each["partitions"] for each in keyed)
    assert first["partition"] == second["partition"]
    named = broker.ok("publish", "parted", "x", "--partition", "3", "--json").json
    assert named["partitions"][0]["partition"] == 3
    wrong = broker.run("publish", "parted", "x", "--partition", "4")
    assert wrong.code == 1 and "[partition_not_found]" in wrong.err


def test_cursor_is_moved_and_forgotten(broker: Broker) -> None:
    broker.ok("publish", "moved", given=numbered(10))
    made = broker.ok("cursors", "seek", "moved", "reader", "--to", "7")
    assert made.text == "reader reads on in moved at 7 in partition 0\n"
    assert broker.ok("subscribe", "moved", "--as", "reader", "--count", "3").lines == ["8", "9", "10"]
    assert broker.ok("cursors", "seek", "moved", "reader", "--to", "earliest", "--json").json["lag"] == 10
    assert broker.ok("cursors", "seek", "moved", "reader", "--to", "-10m", "--json").json["lag"] == 10
    assert broker.ok("cursors", "seek", "moved", "reader", "--to", "latest", "--json").json["lag"] == 0
    shown = broker.ok("cursors", "list", "moved").lines
    assert shown[-1].split() == ["moved", "reader", "0", "10", "10", "0"]

    asked = broker.run("cursors", "delete", "moved", "reader")
    assert asked.code == 2 and "add --yes" in asked.err
    broker.ok("cursors", "delete", "moved", "reader", "--yes")
    assert broker.ok("cursors", "list", "moved", "--json").out == b""
    gone = broker.run("cursors", "delete", "moved", "reader", "--yes")
    assert gone.code == 1 and "[cursor_not_found]" in gone.err

    wrong = broker.run("cursors", "seek", "moved", "reader", "--to", "somewhere")
    assert wrong.code == 2 and "is no place to start" in wrong.err

"""Topics with slashes, blanks and letters of all the world, from one end to the other."""

from __future__ import annotations

from pathlib import Path

from testkit.processes import BrokerProcess
from testkit.text_client import PUBACK, SUBACK
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.client import connect, connect_blocking
from holdfast.testing.ports import free_port
from tests.client.reading import take

NAMES = ["sensors/kitchen/temperature", "two words", "grün ☃", '50% "off"', "../up", "[bold]x[/bold]"]


def holdfast(*words: str) -> str:
    """A command that has to work, in this process."""
    ended = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(words), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


async def test_topic_is_published_to_and_read_whatever_it_is_called(shared_broker: BrokerProcess) -> None:
    async with connect(shared_broker.url) as client:
        for name in NAMES:
            created = await client.create_topic(name, partitions=2)
            assert created.topic == name
            await client.publish(name, b"1", key="k", id="a")
            assert (await client.publish(name, b"1", key="k", id="a")).duplicate
            await client.publish_many(name, [b"2", b"3"])
            found = [await client.read(name, number, 0) for number in range(2)]
            assert sorted(each.value for some in found for each in some) == [b"1", b"2", b"3"]
            async with client.subscribe(name, "reader", start="earliest") as messages:
                assert sorted(each.value for each in await take(messages, 3)) == [b"1", b"2", b"3"]
            assert (await client.seek(name, "reader", "earliest")).topic == name
            assert [each.name for each in await client.cursors(name)] == ["reader"]
            made = await client.subscribe_callback(name, f"127.0.0.1:{free_port()}", name="back")
            assert (made.topic, made.name) == (name, "back")
            await client.remove_subscription(name, "back")
    # The other end.
    with shared_broker.connect() as talk:
        for name in NAMES:
            assert talk.ask(f"SUBSCRIBE|{name}".encode()) == SUBACK
            talk.say(f"PUBLISH|{name}|said".encode())
            assert sorted(talk.lines(2)) == sorted([PUBACK, f"MESSAGE|{name}|said".encode()])


def test_commands_show_a_topic_as_it_is_called(shared_broker: BrokerProcess) -> None:
    server, name = shared_broker.server, "[bold]grün/☃[/bold]"
    holdfast("publish", name, "x", "--server", server)
    assert name in holdfast("topics", "list", "--server", server)
    assert name in holdfast("topics", "describe", name, "--server", server)
    holdfast("topics", "delete", name, "--yes", "--server", server)
    assert name not in holdfast("topics", "list", "--server", server)


def test_topics_of_unusual_names_are_found_by_doctor_backups_and_when_the_state_is_lost(tmp_path: Path) -> None:
    data, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    with BrokerProcess(data) as broker:
        with connect_blocking(broker.url) as client:
            for name in NAMES:
                client.publish(name, name)
        holdfast("backup", "create", str(copy), "--server", broker.server)
    holdfast("backup", "verify", str(copy))
    holdfast("backup", "restore", str(copy), "--data", str(restored))
    for each in (data, restored):
        assert "All is well." in holdfast("doctor", str(each))
    for file in data.glob("state.sqlite*"):
        file.unlink()
    for each in (data, restored):
        with BrokerProcess(each) as broker, connect_blocking(broker.url) as client:
            assert {topic.topic for topic in client.topics()} == set(NAMES)
            assert [client.read(name, 0, 0)[0].value.decode() for name in NAMES] == NAMES

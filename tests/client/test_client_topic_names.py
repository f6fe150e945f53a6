"""Topics with slashes, blanks and letters of all the world, from one end to the other."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

from holdfast.client import connect, connect_blocking
from holdfast.testing.ports import free_port

NAMES = ["sensors/kitchen/temperature", "two words", "grün ☃", '50% "off"', "../up", "[bold]x[/bold]"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("names") / "data") as running:
        yield running


def holdfast(*words: str) -> str:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("name", NAMES)
async def test_topic_is_published_to_and_read_whatever_it_is_called(broker: BrokerProcess, name: str) -> None:
    async with connect(broker.url) as client:
        created = await client.create_topic(name, partitions=2)
        assert created.topic == name
        await client.publish(name, b"1", key="k", id="a")
        assert (await client.publish(name, b"1", key="k", id="a")).duplicate
        await client.publish_many(name, [b"2", b"3"])
        found = [await client.read(name, number, 0) for number in range(2)]
        assert sorted(each.value for some in found for each in some) == [b"1", b"2", b"3"]
        async with client.subscribe(name, "reader", start="earliest") as messages:
            seen = []
            async for message in messages:
                seen.append(message.value)
                if len(seen) == 3:
                    break
        assert sorted(seen) == [b"1", b"2", b"3"]
        assert (await client.seek(name, "reader", "earliest")).topic == name
        assert [each.name for each in await client.cursors(name)] == ["reader"]
        made = await client.subscribe_callback(name, f"127.0.0.1:{free_port()}", name="back")
        assert (made.topic, made.name) == (name, "back")
        await client.remove_subscription(name, "back")
    # The other end.
    with socket.create_connection(("127.0.0.1", broker.text_address[1]), timeout=20) as talk:
        lines = talk.makefile("rb")
        lines.readline()
        talk.sendall(f"SUBSCRIBE|{name}\nPUBLISH|{name}|said\n".encode())
        got = [lines.readline() for _ in range(3)]
        assert f"MESSAGE|{name}|said\n".encode() in got


def test_commands_show_a_topic_as_it_is_called(broker: BrokerProcess) -> None:
    server, name = broker.server, "[bold]grün/☃[/bold]"
    holdfast("publish", name, "x", "--server", server)
    assert name in holdfast("topics", "list", "--server", server)
    assert name in holdfast("topics", "describe", name, "--server", server)
    holdfast("topics", "delete", name, "--yes", "--server", server)
    assert name not in holdfast("topics", "list", "--server", server)


def test_doctor_and_backups_know_topics_of_unusual_names(tmp_path: Path) -> None:
    data, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    with BrokerProcess(data) as broker:
        with connect_blocking(broker.url) as client:
            for name in NAMES:
                client.publish(name, name)
        holdfast("backup", "create", str(copy), "--server", broker.server)
    assert "All is well." in holdfast("doctor", str(data))
    holdfast("backup", "verify", str(copy))
    holdfast("backup", "restore", str(copy), "--data", str(restored))
    assert "All is well." in holdfast("doctor", str(restored))
    with (
        BrokerProcess(restored) as broker,
        connect_blocking(broker.url) as client,
    ):
        assert {name: [each.value.decode() for each in client.read(name, 0, 0)] for name in NAMES} == {
            name: [name] for name in NAMES
        }


def test_topics_of_unusual_names_are_found_again_when_the_state_is_lost(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        connect_blocking(broker.url) as client,
    ):
        for name in NAMES:
            client.publish(name, name)
    for file in (tmp_path / "data").glob("state.sqlite*"):
        file.unlink()
    with (
        BrokerProcess(tmp_path / "data") as broker,
        connect_blocking(broker.url) as client,
    ):
        assert {each.topic for each in client.topics()} == set(NAMES)
        assert [client.read(name, 0, 0)[0].value.decode() for name in NAMES] == NAMES

"""A message of the largest size that is allowed by default goes in and comes out at every end."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.http_client import Client as HttpClient
from testkit.processes import BrokerProcess

from holdfast.client import Receiver, connect
from holdfast.model.limits import MESSAGE_BYTES_MAX

LARGEST = b"x" * MESSAGE_BYTES_MAX


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


async def test_largest_message_goes_in_and_comes_out_at_every_end(broker: BrokerProcess) -> None:
    http = HttpClient(broker.http_address[1])
    async with connect(broker.url) as client, Receiver("127.0.0.1:0") as receiver:
        await client.create_topic("t")
        await client.subscribe_callback("t", receiver.address)
        with socket.create_connection(broker.text_address, timeout=60) as talk:
            lines = talk.makefile("rb")
            lines.readline()
            talk.sendall(b"SUBSCRIBE|t\n")
            lines.readline()
            talk.sendall(b"PUBLISH|t|" + LARGEST + b"\n")
            assert sorted(lines.readline() for _ in range(2)) == [
                b"MESSAGE|t|" + LARGEST + b"\n",
                b"PUBACK|Published successfully\n",
            ]
            assert (await client.publish("t", LARGEST)).offset == 1
            encoded = base64.b64encode(LARGEST).decode()
            body = {"messages": [{"base64": encoded}]}
            assert http.call("POST", "/v1/topics/t/messages", body).status == 200
            for _ in range(2):
                assert lines.readline() == b"MESSAGE|t|" + LARGEST + b"\n"
        assert [(await receiver.get()).value for _ in range(3)] == [LARGEST] * 3
        async with client.subscribe("t", "reader", start="earliest") as messages:
            for _ in range(3):
                assert (await anext(messages)).value == LARGEST
        for offset in range(3):
            [found] = (await client.read("t", 0, offset))[:1]
            assert (found.offset, found.value) == (offset, LARGEST)
            shown = http.get(f"/v1/topics/t/partitions/0/messages?offset={offset}&max=1").json["messages"]
            assert [each["value"] for each in shown] == [LARGEST.decode()]

"""The conversations in docs/text.md, held with a real broker."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

from tests.docs.console import DOCS

DEADLINE_S = 20


def conversation(dialect: str) -> list[tuple[str, str]]:
    blocks = re.findall(r"<!-- transcript: (\w+) -->\n```\n(.*?)```", (DOCS / "text.md").read_text("utf-8"), re.DOTALL)
    return [(line[0], line[2:]) for name, block in blocks if name == dialect for line in block.splitlines()]


@pytest.mark.parametrize("dialect", ["standard", "ack"])
def test_conversation_in_the_documentation_is_what_a_user_sees(dialect: str, tmp_path: Path) -> None:
    lines = conversation(dialect)
    assert len(lines) > 4
    with (
        BrokerProcess(tmp_path / "data", "--text-dialect", dialect) as broker,
        socket.create_connection(broker.text_address, DEADLINE_S) as client,
    ):
        answers = client.makefile("rb")
        expected: list[str] = []
        for who, line in [*lines, (">", "PING")]:
            if who == "<":
                expected.append(line)
                continue
            # Publisher and subscriber are one connection here, so a delivery may come before its PUBACK.
            got = [answers.readline().decode().rstrip("\n") for _ in expected]
            assert sorted(got) == sorted(expected)
            expected = []
            client.sendall(line.encode() + b"\n")
        assert answers.readline() == b"PONG\n", "nothing else was sent"
        client.close()
        broker.terminate()

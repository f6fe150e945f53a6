"""Commands keep their bytes for ever: a log of the first release is read by every build that comes after it."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.backends.cluster import commands
from holdfast.backends.cluster.commands import (
    AddCallback,
    ChangeMember,
    Command,
    CreateTopic,
    CreateTopicOfBefore,
    DeleteTopic,
    DrawCursor,
    DropCursor,
    MoveCallback,
    MoveCursor,
    NoteNode,
    PreferLeader,
    RaiseLevel,
    RemoveCallback,
    TakeCursor,
)
from holdfast.consensus.membership import Kind
from holdfast.model.draws import Draw
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.topics import TopicConfig

ORDERS, BILLING = TopicName("orders"), CursorName("billing")
CONFIG = TopicConfig(partitions=3, retention_ms=60_000, retention_bytes=1 << 30)
AT = TimestampMs(1_700_000_000_000)

# One of each, all of its fields filled. Those that are released are never changed; a new command adds a line.
FROZEN: list[tuple[Command, str]] = [
    (
        CreateTopicOfBefore(ORDERS, CONFIG, AT, ("n1.a", "n2.b"), "t1"),
        "919601a66f726465727383aa706172746974696f6e7303ac726574656e74696f6e5f6d73cdea60af726574656e74696f6e5f6279746573ce40000000cf0000018bcfe5680092a46e312e61a46e322e62a27431",
    ),
    (
        CreateTopic(ORDERS, CONFIG, AT, "t1"),
        "919507a66f726465727383aa706172746974696f6e7303ac726574656e74696f6e5f6d73cdea60af726574656e74696f6e5f6279746573ce40000000cf0000018bcfe56800a27431",
    ),
    (DeleteTopic(ORDERS, "t1"), "919302a66f7264657273a27431"),
    (
        MoveCursor(ORDERS, "t1", BILLING, {0: Offset(7), 300: Offset(1 << 40)}, True),
        "919603a66f7264657273a27431a762696c6c696e67820007cd012ccf0000010000000000c3",
    ),
    (DropCursor(ORDERS, "t1", BILLING), "919404a66f7264657273a27431a762696c6c696e67"),
    (
        TakeCursor(ORDERS, "t1", BILLING, 2, None, Offset(9), "k1"),
        "919808a66f7264657273a27431a762696c6c696e6702c009a26b31",
    ),
    (NoteNode("n1", "a", {"http": "h:1"}, "0.1.0", 1), "919605a26e31a16181a468747470a3683a31a5302e312e3001"),
    (PreferLeader(ORDERS, "t1", 2, "n1"), "919506a66f7264657273a2743102a26e31"),
    (RaiseLevel(2), "91920902"),
    (
        ChangeMember(Kind.REPLACE, "n4", 3, AT, "n2", "a", "h:1"),
        "91980aa77265706c616365a26e3403cf0000018bcfe56800a26e32a161a3683a31",
    ),
    (
        DrawCursor(ORDERS, "t1", BILLING, 2, Offset(3), Offset(9), [Draw("r1", "8", 2)], True),
        "91991ea66f7264657273a27431a762696c6c696e670203099193a27231a13802c3",
    ),
    (
        AddCallback(ORDERS, "t1", BILLING, "h:1", "numbered", AT, TopicName("done"), "t2", {0: Offset(7)}),
        "919a14a66f7264657273a27431a762696c6c696e67a3683a31a86e756d6265726564cf0000018bcfe56800a4646f6e65a27432810007",
    ),
    (RemoveCallback(ORDERS, BILLING, 5, TopicName("done")), "919515a66f7264657273a762696c6c696e6705a4646f6e65"),
    (
        MoveCallback(ORDERS, BILLING, 5, TopicName("done"), "t2", {0: Offset(7)}, {1: 2}),
        "919816a66f7264657273a762696c6c696e6705a4646f6e65a27432810007810102",
    ),
]


def test_every_command_is_written_down() -> None:
    assert sorted(type(command).__name__ for command, _ in FROZEN) == sorted(
        each.__name__ for each in get_args(Command)
    )


@pytest.mark.parametrize(("command", "stored"), FROZEN, ids=[type(command).__name__ for command, _ in FROZEN])
def test_command_has_the_bytes_that_it_was_released_with(command: Command, stored: str) -> None:
    assert commands.encode([command]).hex() == stored
    assert commands.decode(bytes.fromhex(stored)) == [command]

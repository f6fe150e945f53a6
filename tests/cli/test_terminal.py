"""Commands at a terminal: progress, questions and live views, which pipes never show."""

from __future__ import annotations

from tests.cli.program import Broker, numbered, on_terminal


def test_progress_of_a_flood(broker: Broker) -> None:
    seen = on_terminal("publish", "watched", "--server", broker.server, given=numbered(100_000))
    assert seen.code == 0, seen
    assert "publishing to watched" in seen.screen and "Traceback" not in seen.screen
    assert seen.out.startswith(b"published 100,000 messages to watched")


def test_progress_of_a_bench(broker: Broker) -> None:
    seen = on_terminal("bench", "consume", "--messages", "20000", "--server", broker.server, "--json")
    assert seen.code == 0, seen
    assert "filling" in seen.screen and "reading" in seen.screen


def test_question_before_something_is_gone(broker: Broker) -> None:
    broker.ok("publish", "asked", "x")
    kept = on_terminal("topics", "delete", "asked", "--server", broker.server, typed=b"n\n")
    assert kept.code == 1 and "Delete asked with 1 message" in kept.screen and "nothing was deleted" in kept.screen
    gone = on_terminal("topics", "delete", "asked", "--server", broker.server, typed=b"y\n")
    assert gone.code == 0 and gone.out == b"deleted asked with 1 message\n"


def test_typed_lines_are_published(broker: Broker) -> None:
    nothing = on_terminal("publish", "typed", "--server", broker.server)
    assert nothing.code == 2 and "write `-` to type them" in nothing.screen
    seen = on_terminal("publish", "typed", "-", "--server", broker.server, typed=b"one\ntwo\n\x04")
    assert seen.code == 0, seen
    assert broker.ok("subscribe", "typed", "--from", "earliest", "--count", "2").lines == ["one", "two"]


def test_live_view_of_the_demo() -> None:
    seen = on_terminal("demo", "broker", "--seconds", "3", view=True)
    assert seen.code == 0, seen.screen[-3000:]
    assert "broker killed (SIGKILL" in seen.screen and "no acknowledged message was lost" in seen.screen

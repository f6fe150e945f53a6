"""A short round of every fuzz target, so that a broken parser or a broken target is seen at once."""

from __future__ import annotations

import pytest
from fuzz.__main__ import run
from fuzz.targets import TARGETS

from holdfast.model.errors import HoldfastError

SECONDS = 1.5


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_garbage_gets_an_error_and_nothing_else(name: str) -> None:
    tried, find = run(TARGETS[name], SECONDS, seed=20261115)
    assert find is None
    assert tried > 50


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_good_examples_are_good(name: str) -> None:
    for example in TARGETS[name].examples:
        TARGETS[name].run(example)


def test_runner_reports_what_it_finds() -> None:
    def broken(data: bytes) -> None:
        if len(data) > 3:
            raise IndexError("a parser's bug")
        raise HoldfastError("a clear refusal")

    tried, find = run(TARGETS["text"]._replace(run=broken), SECONDS, seed=1)
    assert tried >= 1
    assert find is not None and len(find) > 3

"""A short round of every fuzz target, so that a broken parser or a broken target is seen at once."""

from __future__ import annotations

import pytest
from fuzz.__main__ import run
from fuzz.targets import TARGETS
from testkit.sizes import scaled

from holdfast.model.errors import HoldfastError


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_garbage_gets_an_error_and_nothing_else(name: str) -> None:
    tried, find = run(TARGETS[name], scaled(1, 20), seed=20261115)
    assert tried
    assert find is None


def test_good_examples_are_good() -> None:
    for target in TARGETS.values():
        for example in target.examples:
            target.run(example)


def test_runner_reports_what_it_finds() -> None:
    def broken(data: bytes) -> None:
        if len(data) > 3:
            raise IndexError("a parser's bug")
        raise HoldfastError("a clear refusal")

    tried, find = run(TARGETS["text"]._replace(run=broken), 1, seed=1)
    assert tried >= 1
    assert find is not None and len(find) > 3

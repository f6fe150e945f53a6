"""What an error says about the request it answers: refused, not stored, or unknown."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

import holdfast
from holdfast.client.pair import passing_codes
from holdfast.model.errors import (
    OUTCOMES,
    HoldfastError,
    NotStored,
    OutcomeUnknown,
    Refused,
    RemoteError,
    Unavailable,
    WorldError,
    codes_of,
)

# These are never raised as they are: what they say depends on the class below them.
ABSTRACT = {HoldfastError, WorldError, RemoteError}
DOCS = Path(__file__).parents[2] / "docs"


def all_errors() -> list[type[HoldfastError]]:
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:  # of an extra that is not installed, such as Spark
                assert not str(missing.name).startswith("holdfast"), missing
    found: list[type[HoldfastError]] = []
    waiting: list[type[HoldfastError]] = [HoldfastError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("holdfast."):
            found.append(kind)
    return found


def test_every_error_says_exactly_one_thing_about_what_was_stored() -> None:
    kinds = [kind for kind in all_errors() if kind not in ABSTRACT]
    assert len(kinds) > 100
    for kind in kinds:
        assert sum(issubclass(kind, base) for base in OUTCOMES) == 1, kind


def test_a_code_means_the_same_wherever_it_comes_from() -> None:
    bases: dict[str, set[type]] = {}
    for kind in all_errors():
        if not issubclass(kind, RemoteError) and kind not in ABSTRACT:
            bases.setdefault(kind.code, set()).update(base for base in OUTCOMES if issubclass(kind, base))
    assert {code: found for code, found in bases.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("code", "http_status", "base"),
    [
        ("disk_full", 507, NotStored),
        ("node_removed", 503, NotStored),
        ("storage_failed", 503, OutcomeUnknown),
        ("leader_changed", 503, OutcomeUnknown),
        ("internal", 500, OutcomeUnknown),
        ("topic_not_found", 404, Refused),
        ("from_the_future", 409, Refused),
        ("from_the_future", 503, OutcomeUnknown),
        ("http_502", 502, OutcomeUnknown),
        ("bad_answer", 200, OutcomeUnknown),
    ],
)
def test_error_of_a_broker_says_what_the_broker_knows(code: str, http_status: int, base: type[HoldfastError]) -> None:
    raised = RemoteError(code, "why", http_status)
    for error in (raised, copy.copy(raised), pickle.loads(pickle.dumps(raised))):  # noqa: S301 - our own bytes
        assert [each for each in OUTCOMES if isinstance(error, each)] == [base]
        assert (error.code, error.message, error.http_status) == (code, "why", http_status)


def test_pair_goes_on_to_the_other_broker_whenever_that_may_help() -> None:
    passing = passing_codes()
    assert {Unavailable.code, "leader_changed", "storage_failed", "too_many_connections"} <= passing
    assert not passing & {"internal", "bad_topic", "too_large"}


def test_the_documented_meaning_of_every_code_is_the_one_it_has() -> None:
    all_errors()
    text = (DOCS / "errors.md").read_text()
    for title, base in (("Not stored", NotStored), ("Outcome unknown", OutcomeUnknown)):
        listed = re.search(rf"\*\*{title}\*\*: ([^.]+)\.", text)
        assert listed is not None
        assert set(re.findall(r"`(\w+)`", listed[1])) == codes_of(base) - {"error"}

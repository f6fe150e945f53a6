"""Ids of pushed messages: the same for the same message, for ever, and never for two."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.messages import NewMessage
from holdfast.model.push_ids import is_uuid, push_id, push_ids
from holdfast.wire import batch_builder, push_batch, record_batch
from holdfast.wire.push_batch import Pushed

# What may be near a UUID and is none; and what people really send.
NEARLY = st.sampled_from(
    [
        "0191E2CD-09AA-70CA-A04C-6567F4442E96",
        "0191e2cd09aa70caa04c6567f4442e96",
        "0191e2cd-09aa-70ca-a04c-6567f4442e9 ",
        " 191e2cd-09aa-70ca-a04c-6567f4442e96",
        "0191e2cd-09aa-70ca-a04c-6567f4442e9g",
        "0191e2cd-09aa-70ca-a04c-6567f4442e9٣",
        "0191e2cd-09aa-70ca-a04c-6567f4442e960",
        "-0191e2cd09aa-70ca-a04c-6567f4442e96",
        "{0191e2cd-09aa-70ca-a04c-6567f4442e9",
    ]
)
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60)
TRANSACTIONS = st.one_of(st.uuids().map(str), NEARLY, TEXTS)
NAMES = st.one_of(st.sampled_from(["Default", "p1", "customer-17", "ü"]), TEXTS)
ITEMS = st.lists(st.tuples(NAMES, TRANSACTIONS), min_size=1, max_size=30)


@given(ITEMS)
def test_many_ids_at_once_are_the_ids_one_by_one(items: list[tuple[str, str]]) -> None:
    names, transactions = zip(*items, strict=True)
    assert push_ids(names, transactions) == [push_id(name, each) for name, each in items]


@given(st.lists(st.tuples(NAMES, st.uuids(version=4).map(str)), min_size=1, max_size=40))
def test_uuids_keep_their_time_and_their_kind(items: list[tuple[str, str]]) -> None:
    names, transactions = zip(*items, strict=True)
    assert push_ids(names, transactions) == [push_id(name, each) for name, each in items]
    for given_id, made in zip(transactions, push_ids(names, transactions), strict=True):
        before, after = uuid.UUID(given_id), uuid.UUID(made)
        assert (before.bytes[:6], before.version, before.variant) == (after.bytes[:6], after.version, after.variant)


@given(st.sets(st.tuples(NAMES, TRANSACTIONS), max_size=60))
def test_different_messages_have_different_ids(items: set[tuple[str, str]]) -> None:
    made = {push_id(name, each) for name, each in items}
    assert len(made) == len(items) and all(map(is_uuid, made))


def test_ids_stay_what_they_are_in_stores_that_are_out_there() -> None:
    assert push_id("p1", "t1") == "8e1c04a5-7530-8094-9c2e-2d081155ff3d"
    assert push_id("p2", "t1") == "ddbc90af-8a65-86c2-9672-afb40edaa937"
    assert push_id("Default", "01a1e2cd-09aa-70ca-a04c-6567f4442e96") == "01a1e2cd-09aa-7ca4-87ec-0887f3af77a0"


@given(st.lists(st.tuples(NAMES, TRANSACTIONS, st.binary(max_size=200), st.none() | TEXTS), min_size=1, max_size=20))
def test_batch_of_columns_is_the_batch_of_its_messages(items: list[tuple[str, str, bytes, str | None]]) -> None:
    names, transactions, values, traces = zip(*items, strict=True)
    pushed = Pushed(names, values, push_ids(names, transactions), transactions, traces)
    batch = push_batch.build(pushed, 1_700_000_000_000)
    assert batch == batch_builder.build_batch(pushed.messages(), 1_700_000_000_000)
    assert [message.id for message in record_batch.decode(batch, 0)] == list(pushed.ids)
    some = list(range(0, len(items), 2))
    assert pushed.only(some).messages() == [pushed.messages()[place] for place in some]


def test_message_of_a_push_has_its_name_as_key_and_its_ids_as_headers() -> None:
    assert Pushed(["p"], [b"1"], ["id"], ["tx"], ["tr"]).messages() == [
        NewMessage(value=b"1", key=b"p", id="id", headers=[("transaction-id", b"tx"), ("trace-id", b"tr")])
    ]

"""Rows that raise are dead, alone and with their reason; all others go on, in order. Without Spark and broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.broker import client_batches, processing
from holdfast.model.errors import BadMessageId, BadTopicName
from holdfast.model.ids import Offset, TimestampMs, TopicName
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX
from holdfast.model.messages import StoredMessage
from holdfast.pipelines import dead_letters
from holdfast.pipelines.errors import BadFunction
from holdfast.pipelines.made_rows import Rules, as_given
from holdfast.pipelines.transform_rows import over_batches
from holdfast.pipelines.transform_state import READ, Fold, as_table
from holdfast.spark.sink_encoding import encoded
from holdfast.wire import record_batch

RULES = Rules("orders", "made")


def message(offset: int, value: bytes | None = None, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"key": b"k%d" % (offset % 3), "topic": "orders"}
    row["value"] = b"%d" % offset if value is None else value
    row |= {"partition": 0, "offset": offset, "timestamp": 0, "id": f"0-{offset}", "headers": None, "event_time": 0}
    return {**row, **more}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=READ)


def run(function: Callable[[Any], Any], *rows: dict[str, Any], rules: Rules = RULES) -> list[dict[str, Any]]:
    return [row for made in over_batches(function, rules)([batch(*rows)]) for row in made.to_pylist()]


def said(row: dict[str, Any]) -> dict[str, bytes]:
    return {each["key"].removeprefix(dead_letters.DEAD_HEADER): each["value"] for each in row["headers"]}


def doubled(given_batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = [int(value) for value in given_batch["value"].to_pylist()]
    return pa.record_batch({"key": given_batch["key"], "value": [str(2 * number) for number in numbers]})


# --- which rows -----------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 17))
def test_exactly_the_rows_that_raise_are_dead_and_the_others_keep_their_order(
    is_bad: list[bool], rows_max: int
) -> None:
    rows = [message(offset, b"x" if bad else None) for offset, bad in enumerate(is_bad)]
    made = run(doubled, *rows, rules=RULES._replace(batch_rows_max=rows_max))
    expected = [("orders.dead", b"x") if bad else ("made", b"%d" % (2 * n)) for n, bad in enumerate(is_bad)]
    assert [(row["topic"], row["value"]) for row in made] == expected
    dead = [said(row) for row in made if row["topic"] == "orders.dead"]
    assert [int(each["offset"]) for each in dead] == [offset for offset, bad in enumerate(is_bad) if bad]


class Panic(BaseException):
    """As PyO3's: what a library in Rust raises where it panics."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Wordless(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Panicking(Exception):
    def __str__(self) -> str:
        raise Panic("once more")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Panic("index out of bounds"), b"Panic: index out of bounds"),
        (SystemExit(2), b"SystemExit: 2"),
        (asyncio.CancelledError(), b"CancelledError"),
        (Speechless(), b"Speechless: its text cannot be made: ValueError"),
        (Wordless(), b"Wordless: its text cannot be made: TypeError"),
        (Panicking(), b"Panicking: its text cannot be made: Panic"),
        (ValueError("half a pair: \ud83d"), b"ValueError: half a pair: ?"),
        (BaseExceptionGroup("two", [Panic("a"), ValueError("b")]), b"BaseExceptionGroup: two (2 sub-exceptions)"),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else "",
)
@pytest.mark.parametrize("is_stateful", [False, True])
def test_message_for_which_anything_is_raised_holds_up_no_other(
    error: BaseException, told: bytes, is_stateful: bool
) -> None:
    def picky(given_batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"poison" in given_batch["value"].to_pylist():
            raise error
        return given_batch.select(["value"])

    rows = [message(0), message(1, b"poison"), message(2)]
    if is_stateful:
        fold = Fold(lambda state, given_batch: (state, picky(given_batch)), RULES, None)
        made = [row for table in fold.take(as_table(rows, has_windows=False)) for row in table.to_pylist()]
    else:
        made = run(picky, *rows)
    assert [(row["topic"], row["value"]) for row in made] == [
        ("made", b"0"),
        ("orders.dead", b"poison"),
        ("made", b"2"),
    ]
    assert said(made[1])["error"].startswith(told) and said(made[1])["offset"] == b"1"
    assert said(made[1])["class"] == told.partition(b":")[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_end_of_a_task_is_no_messages_fault(error: type[BaseException]) -> None:
    def ended(_: pa.RecordBatch) -> None:
        raise error

    with pytest.raises(error):
        run(ended, message(0))


def test_memory_that_runs_out_is_told_with_the_place() -> None:
    def large(given_batch: pa.RecordBatch) -> pa.RecordBatch:
        if given_batch["offset"][0].as_py() == 4:
            raise MemoryError
        return given_batch.select(["value"])

    rules = RULES._replace(batch_rows_max=2)
    with pytest.raises(MemoryError, match="memory ran out at orders/0/4 to orders/0/5"):
        run(large, *(message(offset) for offset in range(8)), rules=rules)


def test_few_bad_rows_cost_few_calls() -> None:
    calls: list[int] = []

    def counted(given_batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(given_batch.num_rows)
        return doubled(given_batch)

    run(counted, *(message(offset, b"x" if offset == 700 else None) for offset in range(1024)))
    assert len(calls) == 1 + 2 * 10


def test_dead_letter_is_the_message_with_its_reason() -> None:
    row = message(7, b"no number", id="order/7", headers=[{"key": "trace", "value": b"t"}])
    [letter] = run(doubled, row)
    assert (letter["topic"], letter["key"], letter["value"], letter["id"]) == (
        "orders.dead",
        b"k1",
        b"no number",
        "order/7",
    )
    assert said(letter) == {
        "trace": b"t",
        "topic": b"orders",
        "partition": b"0",
        "offset": b"7",
        "class": b"ValueError",
        "error": said(letter)["error"],
    }
    text = said(letter)["error"].decode()
    assert text.startswith("ValueError: invalid literal for int()") and "test_transform_rows.py:" in text


def test_dead_letters_have_the_headers_of_those_of_processors() -> None:
    origin = processing.Origin(TopicName("orders"), TimestampMs(0), 0)
    stored = StoredMessage(offset=Offset(7), timestamp_ms=TimestampMs(0), id="0-7", key=None, value=b"x", headers=[])
    theirs = dict(processing.dead_letter(origin, stored, processing.GaveUp("why", 1)).headers)
    [letter] = run(doubled, message(7, b"x"))
    ours = {each["key"]: each["value"] for each in letter["headers"]}
    common = {f"holdfast-dead-{name}" for name in ("topic", "partition", "offset")}
    assert {name: theirs[name] for name in common} == {name: ours[name] for name in common}
    assert "holdfast-dead-error" in theirs and "holdfast-dead-error" in ours
    assert processing.DEAD_SUFFIX == dead_letters.DEAD_SUFFIX
    assert processing.ERROR_TEXT_CHARACTERS_MAX == dead_letters.ERROR_CHARACTERS_MAX


def test_letter_of_a_letter_has_the_last_reason_and_fits() -> None:
    many = [{"key": f"h{number}", "value": b""} for number in range(HEADERS_PER_MESSAGE_MAX)]
    [letter] = run(doubled, message(1, b"x", headers=[{"key": "holdfast-dead-offset", "value": b"99"}, *many]))
    assert len(letter["headers"]) <= HEADERS_PER_MESSAGE_MAX and said(letter)["offset"] == b"1"
    [large] = run(doubled, message(2, b"x" * 1000), rules=RULES._replace(message_bytes_max=1010))
    assert (large["value"], large["key"], said(large)["value"]) == (b"", None, b"left out, 1000 bytes")


def test_long_errors_are_cut() -> None:
    def wordy(_: Any) -> Any:
        raise RuntimeError("so much " * 1000)

    assert len(said(run(wordy, message(1))[0])["error"]) == dead_letters.ERROR_CHARACTERS_MAX


def test_dead_letters_need_a_name() -> None:
    with pytest.raises(BadTopicName):
        dead_letters.dead_topic("t" * 200)


# --- what a function may return -------------------------------------------------------------------------------


def test_batch_that_comes_back_goes_on_with_key_headers_and_id() -> None:
    row = message(3, headers=[{"key": "a", "value": b"b"}])
    assert run(lambda given_batch: given_batch, row) == [
        {"topic": "made", "key": b"k0", "value": b"3", "headers": [{"key": "a", "value": b"b"}], "id": "0-3"}
    ]


def test_function_over_pandas_filters_adds_and_takes_text() -> None:
    def twice(frame: Any) -> Any:
        kept = frame[frame["offset"] % 2 == 0]
        kept = kept.loc[kept.index.repeat(2), ["key", "value"]]
        return kept.assign(value=kept["value"].str.decode("ascii"))

    made = run(twice, *map(message, range(3)), rules=RULES._replace(batches="pandas"))
    assert [row["value"] for row in made] == [b"0", b"0", b"2", b"2"]
    assert run(lambda frame: frame.iloc[:0], message(1), rules=RULES._replace(batches="pandas")) == []


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned NoneType"),
        ({"value": [b"x"]}, "returned dict"),
        (pa.table({"key": ["a"]}), "without the column value"),
        (pa.table({"value": ["a"], "colour": ["red"]}), "returned the column colour"),
    ],
)
def test_function_that_returns_no_rows_ends_the_pipeline(returned: Any, words: str) -> None:
    with pytest.raises(BadFunction, match=words) as failed:
        run(lambda _: returned, message(1))
    assert failed.value.message.startswith("[bad_function] "), "Spark passes on texts only"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [17]}, "the column value is int64; give bytes or text"),
        ({"value": ["x" * 2000]}, "at most 1500 are allowed"),
        ({"value": ["x"], "headers": [[{"key": "h", "value": b"x" * 2000}]]}, "at most 1500 are allowed"),
        ({"value": ["x"], "id": [""]}, "an id has 1 to 250 bytes"),
        ({"value": ["x"], "id": ["i" * 251]}, "an id has 1 to 250 bytes"),
        ({"value": ["x"], "id": ["a\nb"]}, "printable"),
        ({"value": ["x"], "headers": [[{"key": "holdfast-id", "value": b"1"}]]}, "give the id as the id"),
        ({"value": ["x"], "headers": [[{"key": f"h{n}", "value": b""} for n in range(65)]]}, "at most 64 headers"),
    ],
)
def test_what_no_broker_takes_is_dead_and_holds_up_nobody(columns: dict[str, Any], words: str) -> None:
    def bad_for_one(given_batch: pa.RecordBatch) -> Any:
        if pc.any(pc.equal(given_batch["offset"], 1)).as_py():
            return pa.table(columns)
        return given_batch

    made = run(bad_for_one, *map(message, range(3)), rules=RULES._replace(message_bytes_max=1500))
    assert [row["topic"] for row in made] == ["made", "orders.dead", "made"]
    assert words in said(made[1])["error"].decode()


@given(st.lists(st.one_of(st.text(max_size=4), st.text(max_size=90), st.binary(max_size=3)), min_size=1, max_size=20))
@example(["\u0378", "\u00a0", "\u2028", b"\xff", "x" * 250, "ä" * 126])
def test_ids_are_dead_exactly_where_a_broker_refuses_them(ids: list[str | bytes]) -> None:
    raw = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in ids]

    def named(given_batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"value": given_batch["value"], "id": given_batch["value"].view(pa.string())})

    now_ms = TimestampMs(time.time_ns() // 1_000_000)

    def is_taken(text: bytes) -> bool:
        record = pa.RecordBatch.from_pylist([{"value": b"", "id": text}])
        try:
            batch_bytes = record_batch.summed(encoded(record["value"], ids=record["id"]))
            client_batches.checked(batch_bytes, 1 << 20, now_ms)
        except BadMessageId:
            return False
        return True

    made = run(named, *(message(offset, text) for offset, text in enumerate(raw)))
    assert [row["topic"] == "made" for row in made] == list(map(is_taken, raw))


def test_memory_error_is_no_rows_fault() -> None:
    def hungry(_: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        run(hungry, message(1))


# --- states ---------------------------------------------------------------------------------------------------


def summed(state: Any, given_batch: pa.RecordBatch) -> tuple[Any, Any]:
    """A running sum; changes the state it was given before it raises, which must not be seen."""
    state = state or {"sum": 0}
    out = []
    for value in given_batch["value"].to_pylist():
        state["sum"] += 1_000_000
        state["sum"] += int(value) - 1_000_000
        out.append(str(state["sum"]))
    return state, pa.table({"value": out})


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 9))
def test_row_that_raises_changes_no_state(is_bad: list[bool], rows_max: int) -> None:
    rows = [message(offset, b"x" if bad else None) for offset, bad in enumerate(is_bad)]
    fold = Fold(summed, RULES._replace(batch_rows_max=rows_max), None)
    made = [row for table in fold.take(pa.Table.from_batches([batch(*rows)])) for row in table.to_pylist()]
    expected, total = [], 0
    for offset, bad in enumerate(is_bad):
        total += 0 if bad else offset
        expected.append(("orders.dead", b"x") if bad else ("made", b"%d" % total))
    assert [(row["topic"], row["value"]) for row in made] == expected
    assert fold.text == (None if all(is_bad) else f'{{"sum": {total}}}')


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "returned NoneType"), ((object(), None), "JSON cannot say"), (("a", "b"), "returned str")],
)
def test_function_that_returns_no_state_and_rows_ends_the_pipeline(returned: Any, words: str) -> None:
    fold = Fold(lambda _state, _batch: returned, RULES, None)
    with pytest.raises(BadFunction, match=words):
        list(fold.take(pa.Table.from_batches([batch(message(1))])))


def test_state_is_bounded_and_none_forgets_it() -> None:
    fold = Fold(lambda _state, _batch: ("x" * (1 << 19), None), RULES, '"before"')
    [dead] = fold.take(pa.Table.from_batches([batch(message(1))]))
    assert (
        "the state has 524290 bytes; at most 524288" in said(dead.to_pylist()[0])["error"].decode()
        and fold.text == '"before"'
    )
    fold = Fold(lambda _state, _batch: (None, None), RULES, '"before"')
    assert [table.num_rows for table in fold.take(pa.Table.from_batches([batch(message(1))]))] == [0]
    assert fold.text is None


def test_letter_of_a_window_fits_with_its_reason() -> None:
    state, rules = json.dumps("s" * 400), RULES._replace(message_bytes_max=1000)
    for key, kept in ((b"k", b"k"), (b"k" * 700, None)):
        [letter] = dead_letters.dead_window(key, state, ValueError("why"), rules).to_pylist()
        assert (letter["topic"], letter["key"], letter["value"]) == ("orders.dead", kept, state.encode())
        assert said(letter)["class"] == b"ValueError"


def test_rows_of_a_key_come_in_the_order_of_the_log() -> None:
    rows = [message(offset, partition=partition) for partition, offset in ((1, 2), (0, 9), (1, 1), (0, 10))]
    places = as_table(rows, has_windows=False).select(["partition", "offset"]).to_pylist()
    assert [tuple(place.values()) for place in places] == [(0, 9), (0, 10), (1, 1), (1, 2)]


def test_function_gets_what_it_asks_for() -> None:
    table = pa.Table.from_batches([batch(message(1))])
    assert isinstance(as_given(table, "arrow"), pa.RecordBatch)
    assert type(as_given(table, "pandas")).__name__ == "DataFrame"

"""What executors do with rows of one key: fold them into a state, which Spark keeps.

`function(state, batch)` returns the next state and rows. The state is whatever JSON can say, `None` at first, and is
kept as JSON text: each call gets its own copy, so one that raises has changed nothing, and the row is dead. Rows of a
key come in the order of their offsets.

With windows there is one state for each key and window. When the watermark has passed its end the function is called a
last time, with `None` for the batch; then the state is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from holdfast.model.errors import TooLarge
from holdfast.pipelines.dead_letters import dead_letter, dead_window
from holdfast.pipelines.errors import BadFunction
from holdfast.pipelines.made_rows import HEADERS, MADE, Rules, as_given, as_made
from holdfast.pipelines.transform_rows import NO_ROWS_FAULT, caller, in_order

# A state is read and written whole with each batch of its key. It must fit into a dead letter, with the reason.
STATE_BYTES_MAX: Final = 1 << 19
_MOMENT: Final = pa.timestamp("us", "UTC")
READ: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _MOMENT),
        ("id", pa.string()),
        ("headers", HEADERS),
        ("event_time", _MOMENT),
    ]
)
WINDOW: Final = (("window_start", _MOMENT), ("window_end", _MOMENT))

Function = Callable[[Any, Any], tuple[Any, Any]]


class Fold:
    """One key's state as text, none where there is none, and what a function makes of it."""

    def __init__(self, function: Function, rules: Rules, text: str | None) -> None:
        self._function = function
        self._rules = rules
        self._limited = caller(rules)
        self.text = text

    def take(self, rows: pa.Table) -> Iterator[pa.Table]:
        """What is made of rows, and dead letters of those for which the function raises."""
        for start in range(0, rows.num_rows, self._rules.batch_rows_max):
            yield from in_order(rows.slice(start, self._rules.batch_rows_max), self._step, self._bury)

    def end(self) -> pa.Table:
        """What is made of the state when its window has ended."""
        _, made = self._call(None, "the end of a window")
        return made

    def _step(self, rows: pa.Table) -> pa.Table:
        text, made = self._call(as_given(rows, self._rules.batches), rows)
        self.text = text
        return made

    def _call(self, batch: Any, about: pa.Table | str) -> tuple[str | None, pa.Table]:
        state = None if self.text is None else json.loads(self.text)
        returned = self._limited(lambda: self._function(state, batch), about)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise BadFunction(
                f"[{BadFunction.code}] the function returned {type(returned).__name__}; one with a state returns two "
                "things: the next state, and rows or None"
            )
        next_state, rows = returned
        state_bytes_max = min(STATE_BYTES_MAX, self._rules.message_bytes_max // 2)
        return _as_text(next_state, state_bytes_max), MADE.empty_table() if rows is None else as_made(rows, self._rules)

    def _bury(self, row: pa.Table, error: BaseException) -> pa.Table:
        return dead_letter(row, error, self._rules)


def _as_text(state: Any, bytes_max: int) -> str | None:
    if state is None:
        return None
    try:
        text = json.dumps(state)
    except TypeError as error:
        raise BadFunction(
            f"[{BadFunction.code}] the function returned a state that JSON cannot say: {error}"
        ) from error
    if len(text) > bytes_max:
        raise TooLarge(f"the state has {len(text)} bytes; at most {bytes_max} are allowed")
    return text


class Folding(StatefulProcessor):
    """A function with a state, for Spark's `transformWithState`."""

    def __init__(self, function: Function, rules: Rules, *, has_windows: bool, state_ttl_ms: int | None) -> None:
        self._function = function
        self._rules = rules
        self._has_windows = has_windows
        self._state_ttl_ms = state_ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("state", "json string", self._state_ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        gathered = as_table((row.asDict() for row in rows), has_windows=self._has_windows)
        fold = Fold(self._function, self._rules, self._text())
        yield from _as_rows(fold.take(gathered))
        if fold.text is None:
            self._state.clear()
        else:
            self._state.update((fold.text,))
        if self._has_windows:
            end_ms = gathered["window_end"][0].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).as_py()
            self._handle.registerTimer(end_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        text = self._text()
        if text is not None:
            try:
                made = Fold(self._function, self._rules, text).end()
            except NO_ROWS_FAULT:
                raise
            except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, and the letter tells what
                made = dead_window(key[0], text, error, self._rules)
            yield from _as_rows([made])
        self._state.clear()

    def close(self) -> None:
        """Nothing is held."""

    def _text(self) -> str | None:
        found = self._state.get()
        return None if found is None else found[0]


def as_table(rows: Iterable[dict[str, Any]], *, has_windows: bool) -> pa.Table:
    """All rows of a key in one batch, in the order of their log: a shuffle has none."""
    schema = pa.schema([*READ, *WINDOW]) if has_windows else READ
    return pa.Table.from_pylist(sorted(rows, key=lambda row: (row["partition"], row["offset"])), schema=schema)


def _as_rows(made: Iterable[pa.Table]) -> Iterator[Row]:
    for table in made:
        for row in table.to_pylist():
            yield Row(**row)

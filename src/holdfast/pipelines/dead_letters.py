"""Dead letters of a transform: a message as it was, and in headers why it is among the dead.

They look like those of processors (docs/processing.md), which stand in the same topic, `<topic>.dead`. Where a message
and its reason together are larger than a message may be, the value is left out: it stands in the topic, at the offset
that a header names.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa

from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX
from holdfast.model.names import topic_name
from holdfast.pipelines.call_limits import CallTimedOut
from holdfast.pipelines.made_rows import MADE, Rules, sizes

# As those of `holdfast.broker.processing`, which executors do not have.
DEAD_SUFFIX: Final = ".dead"
DEAD_HEADER: Final = "holdfast-dead-"
ERROR_CHARACTERS_MAX: Final = 1000
# Topic, partition, offset, error, class and value.
_REASONS_MAX: Final = 6

# A partition, and an offset in it.
Place = tuple[int, int]


def dead_topic(source: str) -> str:
    """Where messages go that cannot be made anything of; `bad_topic` if the source's own name leaves no room."""
    return topic_name(source + DEAD_SUFFIX)


def dead_letter(row: pa.Table, error: BaseException | str, rules: Rules) -> pa.Table:
    """The message as it was, and in headers why it is here; without its value where both together are too large."""
    (message,) = row.select(["key", "value", "topic", "partition", "offset", "id", "headers"]).to_pylist()
    kept = [each for each in message["headers"] or [] if not each["key"].startswith(DEAD_HEADER)]
    place = {name: str(message[name]) for name in ("topic", "partition", "offset")}
    reasons = headers({**place, **error_headers(error)})
    letter = {
        "topic": message["topic"] + DEAD_SUFFIX,
        "key": message["key"],
        "value": message["value"],
        "headers": [*kept[: HEADERS_PER_MESSAGE_MAX - _REASONS_MAX], *reasons],
        "id": message["id"],
    }
    made = pa.Table.from_pylist([letter], schema=MADE)
    if int(sizes(made)[0]) <= rules.message_bytes_max:
        return made
    left_out = headers({"value": f"left out, {len(message['value'] or b'')} bytes"})
    without_value = {**letter, "key": None, "value": b"", "headers": [*reasons, *left_out]}
    return pa.Table.from_pylist([without_value], schema=MADE)


def headers(said: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": DEAD_HEADER + name, "value": text.encode("utf-8", "replace")} for name, text in said.items()]


def error_headers(error: BaseException | str) -> dict[str, str]:
    """An error's class, and what it says on one line with the place in the code; a text has its class in front."""
    if isinstance(error, str):
        return {"error": short(error), "class": error.partition(":")[0]}
    kind = type(error).__name__
    place = ""
    # A call that took too long says itself where it was: what raised that is no code of the user's.
    if not isinstance(error, CallTimedOut) and (frames := traceback.extract_tb(error.__traceback__)):
        place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})"
    text = text_of(error)
    return {"error": short(f"{kind}: {text}" if text else kind, place), "class": kind}


def text_of(error: BaseException) -> str:
    """What an error says; or why it says nothing, as its own code makes the text and may raise itself."""
    try:
        return str(error)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as raised:  # noqa: BLE001 - it is of the user's code as well
        return f"its text cannot be made: {type(raised).__name__}"


def short(text: str, behind: str = "") -> str:
    line = " ".join(text.split())
    room = ERROR_CHARACTERS_MAX - len(behind)
    return (line if len(line) <= room else line[: room - 3] + "...") + behind


def dead_letters(rows: pa.RecordBatch, errors: Mapping[Place, str], rules: Rules) -> Iterator[pa.RecordBatch]:
    """Letters of rows whose reasons are known by their places."""
    for number, place in enumerate(_places(rows)):
        yield from dead_letter(pa.Table.from_batches([rows.slice(number, 1)]), errors[place], rules).to_batches()


def rows_at(rows: pa.RecordBatch, is_wanted: Callable[[Place], bool]) -> pa.RecordBatch:
    """Those rows whose places are wanted."""
    return rows.filter(pa.array([is_wanted(place) for place in _places(rows)], pa.bool_()))


def _places(rows: pa.RecordBatch) -> list[Place]:
    return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def dead_window(key: bytes | None, state: str, error: BaseException, rules: Rules) -> pa.Table:
    """The state of a window for whose end the function raised, without the key where both together are too large."""
    said = headers({"topic": rules.source, **error_headers(error)})
    letter = {"topic": rules.source + DEAD_SUFFIX, "key": key, "value": state.encode(), "headers": said, "id": None}
    made = pa.Table.from_pylist([letter], schema=MADE)
    if int(sizes(made)[0]) <= rules.message_bytes_max:
        return made
    return pa.Table.from_pylist([{**letter, "key": None}], schema=MADE)

"""What is wrong with the body of a push, in words: which item, which field, what is expected there, and what came.

The decoder says ``Expected `str | null`, got `int` - at `$.items[3].partition` ``; whoever reads it may never have seen
this broker's source, nor Python.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.frontends.http.errors import body_error
from holdfast.frontends.http.params import shown
from holdfast.model.errors import BadJson, BadValue, HoldfastError
from holdfast.model.limits import MESSAGE_ID_BYTES_MAX

_EXAMPLE: Final = '{"items": [{"queue": "orders", "payload": {"total": 42}}]}'
_OF_ITEM: Final = ("queue", "payload", "partition", "transactionId", "traceId", "namespace", "task")
_ITEM: Final = "queue, payload, partition, transactionId, traceId, namespace and task"
_BODY: Final = "items, qos, bufferMs and bufferMax"
_EXPECTED: Final = {
    "items": "a list of items",
    "queue": "the queue's name as text",
    "partition": "text, or nothing for Default",
    "transactionId": "text, or nothing to have one made",
    "traceId": "text, or nothing",
    "namespace": "text, or nothing",
    "task": "text, or nothing",
    "qos": "0 (may be lost) or 1 (durable)",
    "bufferMs": "a whole number, or nothing",
    "bufferMax": "a whole number, or nothing",
}
# The decoder's names of what came.
_CAME: Final = {
    "null": "null",
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
}
_GOT: Final = re.compile(r"got `(\w+)`")
_NAMED: Final = re.compile(r"field `(.*)`\Z", re.DOTALL)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_NEAR_BYTES: Final = 24


def push_error(error: Exception, body: bytes) -> HoldfastError:
    """An exception of the decoder in words for whoever pushed."""
    if not body.strip():
        return BadJson(f"the body is empty; send an object such as {_EXAMPLE}")
    if isinstance(error, msgspec.ValidationError):
        return BadValue(_wrong_value(str(error)))
    told = body_error(error, body)
    place = _BYTE.search(told.message)
    if place is None:
        return told
    behind = body[max(0, int(place[1]) - _NEAR_BYTES) : int(place[1])].decode("utf-8", "replace")
    return BadJson(f"{_BYTE.sub(f'at byte {place[1]}', told.message)}, behind {shown(behind)}")


def _wrong_value(text: str) -> str:
    problem, _, path = text.partition(" - at ")
    place = path.strip("`").removeprefix("$").removeprefix(".")
    field = place.rpartition(".")[2]
    named = _NAMED.search(problem)
    if named is not None and "missing" in problem:
        return _missing(place, named[1])
    if named is not None:
        if not place:
            wrap = "; an item stands in items" if named[1] in _OF_ITEM else ""
            return f"the body: there is no field {shown(named[1])}, it has {_BODY}{wrap}"
        return f"{place}: there is no field {shown(named[1])}, an item has {_ITEM}"
    came = _GOT.search(problem)
    got = "" if came is None else f", got {_CAME.get(came[1], came[1])}"
    if not place:
        return f"the body: expected an object such as {_EXAMPLE}{got}"
    if field in _EXPECTED:
        return f"{place}: expected {_EXPECTED[field]}{got}"
    return f'{place}: expected an object such as {{"queue": "orders", "payload": {{}}}}{got}'


def _missing(place: str, name: str) -> str:
    if not place:
        return f"the body: {name} is missing; send an object such as {_EXAMPLE}"
    return f"{place}.{name}: it is missing; expected {_EXPECTED.get(name, 'a value')}"


def wrong_text(field: str, text: str) -> BadValue:
    """A name or an id that is too long, or that has what no terminal or URL should meet."""
    size = len(text.encode())
    came = f"{size} bytes" if size > MESSAGE_ID_BYTES_MAX else f"characters that cannot be printed: {shown(text)}"
    return BadValue(f"{field}: expected printable text of at most {MESSAGE_ID_BYTES_MAX} bytes, got {came}")

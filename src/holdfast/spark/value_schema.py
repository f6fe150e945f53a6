"""The option `valueSchema`, looked at before Spark's Java side reads it, whose errors speak of a schema nobody wrote.

Only mistakes that are certain are refused here: a field without a name or a type, brackets that do not match, a type
that begins with a word which is none. The rest is left to Spark.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.spark.errors import BadOption, with_code

_NUMBERS: Final = ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long")
_FRACTIONS: Final = ("float", "real", "double", "decimal", "dec", "numeric")
_TIMES: Final = ("date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval")
_TEXTS: Final = ("string", "char", "character", "varchar", "binary")
_OTHERS: Final = ("boolean", "void", "variant", "geometry", "geography")
_PRIMITIVES: Final = frozenset(_NUMBERS + _FRACTIONS + _TIMES + _TEXTS + _OTHERS)
# What a type may go on with: of times, of intervals, and of columns.
_TIME_WORDS: Final = ("with", "without", "year", "month", "day", "hour", "minute", "second")
_COLUMN_WORDS: Final = ("precision", "varying", "collate", "not", "null", "comment", "default", "generated")
_BEHIND_TYPES: Final = frozenset(_TIME_WORDS + _COLUMN_WORDS)
_BEHIND = re.compile(r"(?:\([^)]*\)\s*)?(\w*)")
_FIELD = re.compile(r"\s*(?:`(?:[^`]|``)+`|[^\s`:<>(),]+)(?:\s*:\s*|\s+)(\S.*)", re.DOTALL)
_TYPE = re.compile(r"\s*([A-Za-z_]+)\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_OPENING: Final = {"<": ">", "(": ")"}


class _Wrong(Exception):
    """What is wrong with a schema."""


def check_value_schema(text: str) -> None:
    """Raises `bad_option` for what Spark would not understand."""
    try:
        _check_fields(text)
    except _Wrong as wrong:
        raise with_code(
            BadOption,
            f"valueSchema cannot be read: {wrong}. It is names and types, such as item STRING, count INT, or the JSON "
            "of a StructType",
        ) from None


def _check_fields(text: str) -> None:
    for field in _split(text):
        match = _FIELD.fullmatch(field)
        if match is None:
            raise _Wrong(f"{field.strip()!r} is no name with a type behind it" if field.strip() else "a field is empty")
        _check_type(match[1])


def _check_type(text: str) -> None:
    match = _TYPE.fullmatch(text)
    name = match[1].lower() if match else text.strip()
    rest = match[2] if match else ""
    if name in _PRIMITIVES:
        behind = _BEHIND.match(rest)
        if behind and behind[1] and behind[1].lower() not in _BEHIND_TYPES:
            raise _Wrong(f"{behind[1]!r} behind {name} means nothing")
        return
    if name not in ("array", "map", "struct"):
        raise _Wrong(f"there is no type {name}")
    if not rest.startswith("<"):
        raise _Wrong(f"{name} says in <…> what is in it")
    inner = rest[1 : _end_of_brackets(rest)]
    if name == "struct":
        if inner.strip():
            _check_fields(inner)
        return
    kinds = _split(inner)
    if len(kinds) != (1 if name == "array" else 2):
        raise _Wrong("map has two types, as in map<string, int>" if name == "map" else "array has one type")
    for kind in kinds:
        _check_type(kind)


def _split(text: str) -> list[str]:
    """What stands between commas, where they are in no brackets and no quotes."""
    hidden = _hidden(text)
    parts, begin = [], 0
    open_brackets: list[str] = []
    for place, letter in enumerate(hidden):
        if letter in _OPENING:
            open_brackets.append(_OPENING[letter])
        elif letter in (">", ")") and (not open_brackets or open_brackets.pop() != letter):
            raise _Wrong(f"there is a {letter} too many")
        elif letter == "," and not open_brackets:
            parts.append(text[begin:place])
            begin = place + 1
    if open_brackets:
        raise _Wrong(f"a {open_brackets[-1]} is missing")
    return [*parts, text[begin:]]


def _end_of_brackets(text: str) -> int:
    """Where the bracket ends with which the text begins; they match."""
    depth = 0
    for place, letter in enumerate(_hidden(text)):
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return place
    raise _Wrong("a > is missing")


def _hidden(text: str) -> str:
    """Without what is quoted, at the same places."""
    return _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), text)

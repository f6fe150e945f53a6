"""Query parameters: what a call takes, how its text is checked, and how it is described.

One object per parameter says all three, so the documentation cannot promise what the code refuses.
Parameters that a call does not know are refused: a misspelt `max_byts` would otherwise be a silent
default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from holdfast.model.errors import BadValue, PartitionNotFound

Values = Mapping[str, str]
# More than any call takes; a longer list is somebody measuring how much parsing we can be made to do.
_FIELDS_MAX = 32


class Param(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter's name and meaning; an empty value counts as absent."""

    name: str
    doc: str
    required: bool = False

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError


class IntParam(Param, frozen=True, kw_only=True):
    """A whole number within bounds."""

    default: int
    minimum: int
    maximum: int

    def of(self, values: Values) -> int:
        text = values.get(self.name, "")
        if not text:
            return self.default
        number = whole_number(text, self.name)
        if not self.minimum <= number <= self.maximum:
            raise BadValue(f"{self.name} must be {self.minimum} to {self.maximum}, not {number}")
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum, "default": self.default}


class OptionalIntParam(Param, frozen=True, kw_only=True):
    """A whole number of at least zero, or nothing."""

    def of(self, values: Values) -> int | None:
        text = values.get(self.name, "")
        if not text:
            return None
        number = whole_number(text, self.name)
        if number < 0:
            raise BadValue(f"{self.name} must be at least 0, not {number}")
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": 0}


class FlagParam(Param, frozen=True, kw_only=True):
    """`true` or `false`; false when absent."""

    def of(self, values: Values) -> bool:
        text = values.get(self.name, "")
        if text not in {"", "true", "false"}:
            raise BadValue(f"{self.name} must be true or false, not {shown(text)}")
        return text == "true"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean", "default": False}


class PlaceParam(Param, frozen=True, kw_only=True):
    """A place in a log. The broker knows what the words mean and refuses the others."""

    default: str

    def of(self, values: Values) -> str:
        return values.get(self.name, "") or self.default

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "default": self.default, "examples": ["earliest", "latest", "42", "-10m"]}


class TextParam(Param, frozen=True, kw_only=True):
    """Text that must be there."""

    example: str
    required: bool = True

    def of(self, values: Values) -> str:
        text = values.get(self.name, "")
        if not text:
            raise BadValue(f"the parameter {self.name} is missing: {self.doc}")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": [self.example]}


class OptionalTextParam(Param, frozen=True, kw_only=True):
    """Text, or nothing."""

    example: str

    def of(self, values: Values) -> str | None:
        return values.get(self.name) or None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": [self.example]}


def parse(query: bytes, known: Sequence[Param]) -> dict[str, str]:
    """The parameters of a query string; raises `BadValue` for what is unknown, doubled or not text."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_FIELDS_MAX,
        )
    except ValueError:
        raise BadValue("the query string is not a list of name=value in percent-encoded UTF-8") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if all(param.name != name for param in known):
            allowed = ", ".join(param.name for param in known)
            hint = f"this call takes {allowed}" if allowed else "this call takes none"
            raise BadValue(f"unknown parameter {shown(name)}; {hint}")
        if name in values:
            raise BadValue(f"the parameter {name} is given twice")
        values[name] = value
    return values


def whole_number(text: str, name: str) -> int:
    """`text` as a number of plain digits: no underscores, blanks or foreign digits, which int() takes."""
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise BadValue(f"{name} must be a whole number, not {shown(text)}")
    return int(text)


def partition_number(text: str) -> int:
    """The partition in a path. What is no number is no partition that could be found."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise PartitionNotFound(f"{shown(text)} is not a partition; partitions are numbers from 0")
    return int(text)


def shown(text: str) -> str:
    """What a caller sent, short and without anything a terminal would obey."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")

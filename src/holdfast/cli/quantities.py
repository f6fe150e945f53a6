"""How people write amounts (`40s`, `10GB`, `10/s`), as numbers, and how numbers are shown to people."""

from __future__ import annotations

import re
from typing import Final

import typer

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(_NUMBER + r"(ms|s|m|h|d|w)\Z")
_SIZE = re.compile(_NUMBER + r"\s?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?\Z")
_RATE = re.compile(_NUMBER + r"(?:/s)?\Z")

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_UNIT_BYTES: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# Beyond this a paced publisher is a flood, which standard input carries better.
RATE_MAX: Final = 1_000_000.0
_YEARS_100_S: Final = 100 * 365.25 * 86_400


def duration_s(text: str) -> float:
    """`500ms`, `40s`, `10m`, `1.5h`, `7d`, `2w` in seconds."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write a number and a unit, such as 500ms, 40s, 10m or 7d")
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if not 0.001 <= seconds <= _YEARS_100_S:
        raise typer.BadParameter(f"{text!r} is not between a millisecond and a hundred years")
    return seconds


def size_bytes(text: str) -> int:
    """`1500`, `64KiB`, `10GB` in bytes."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no size; write a number and a unit, such as 500MB or 10GB (powers of 1000) or 64MiB (of 1024)"
        )
    size = int(float(match[1]) * _UNIT_BYTES[match[2] or "B"])
    if size < 1:
        raise typer.BadParameter(f"{text!r} is less than one byte")
    return size


def rate_per_s(text: str) -> float:
    """`10`, `0.5`, `100/s` in messages a second."""
    match = _RATE.match(text.strip())
    rate = float(match[1]) if match else 0.0
    if not 0 < rate <= RATE_MAX:
        raise typer.BadParameter(
            f"{text!r} is no rate; write messages a second, such as 10 or 0.5, at most {RATE_MAX:.0f}"
        )
    return rate


def bytes_text(size: float) -> str:
    """`1.5 GB`: powers of 1000, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration_text(seconds: float) -> str:
    """`7d`, `1h 5m`, `12s`, `350ms`: the two largest units that say something."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    left = round(seconds)
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def plural(count: int, noun: str) -> str:
    """`1 message`, `1,200 messages`, `2 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "x", "s")) else "s"
    return f"{count:,} {noun}{ending}"

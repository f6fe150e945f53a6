"""A field with scales, drawn as SVG by hand, so that the base install can draw.

A picture has no background of its own, and its colours read on white as well as on black.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 960
HEIGHT: Final = 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 92, 52
INK: Final = "#777777"
GREEN: Final = "#2f9e63"
BLUE: Final = "#3f83e8"
RED: Final = "#d9483b"
AMBER: Final = "#b7791f"
_TICKS: Final = 5
_DASHED: Final = 'stroke-width="2" stroke-dasharray="5 4"'
# Of the words below a mark.
_WORDS_WIDTH: Final = 120


class Plot:
    """Seconds to the right, some number upwards."""

    def __init__(self, seconds: float, highest: float) -> None:
        self._seconds = seconds
        self._step = _round_step(highest / _TICKS)
        self._highest = math.ceil(highest / self._step) * self._step

    def x(self, at_s: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * at_s / self._seconds, 1)

    def y(self, count: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count / self._highest, 1)

    def axes(self) -> list[str]:
        parts = []
        for tick in range(round(self._highest / self._step) + 1):
            count = tick * self._step
            y = self.y(count)
            parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{INK}" stroke-opacity="0.25"/>')
            parts.append(text(LEFT - 8, y + 4, f"{count:g}", anchor="end"))
        step_s = _round_step(self._seconds / 10)
        for tick in range(int(self._seconds / step_s) + 1):
            parts.append(text(self.x(tick * step_s), HEIGHT - BOTTOM + 20, f"{tick * step_s:g} s", anchor="middle"))
        return parts

    def area(self, counts: Sequence[float], bin_s: float, colour: str) -> str:
        """Steps, filled: each stretch of time is as high as what happened in it."""
        steps = "".join(
            f"L{self.x(index * bin_s)} {self.y(count)}H{self.x((index + 1) * bin_s)}"
            for index, count in enumerate(counts)
        )
        floor = self.y(0)
        return f'<path d="M{LEFT} {floor}{steps}V{floor}Z" fill="{colour}" fill-opacity="0.55"/>'

    def line(self, counts: Sequence[float], bin_s: float, colour: str) -> str:
        points = " ".join(f"{self.x((index + 0.5) * bin_s)},{self.y(count)}" for index, count in enumerate(counts))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def dots(self, points: Iterable[tuple[float, float]], colour: str) -> str:
        """A dot for each pair of seconds and number: lines of no length with round ends, the shortest to write."""
        path = "".join(f"M{self.x(at_s)} {self.y(height)}h0" for at_s, height in points)
        return f'<path d="{path}" stroke="{colour}" stroke-width="5" stroke-linecap="round" stroke-opacity="0.75"/>'

    def marks(self, marks: Sequence[tuple[float, str, str]]) -> list[str]:
        """A line, a word and its colour for each moment; words of moments that are close stand on either side."""
        parts = []
        places = [self.x(at_s) for at_s, _, _ in marks]
        for place, (_, label, colour) in enumerate(marks):
            x = places[place]
            parts.append(f'<path d="M{x} {TOP - 6}V{HEIGHT - BOTTOM}" stroke="{colour}" {_DASHED}/>')
            anchor = "middle"
            if place + 1 < len(places) and places[place + 1] - x < _WORDS_WIDTH:
                anchor = "end"
            elif place and x - places[place - 1] < _WORDS_WIDTH:
                anchor = "start"
            elif x > WIDTH - _WORDS_WIDTH / 2:
                x, anchor = WIDTH, "end"
            parts.append(text(x, HEIGHT - 10, label, anchor=anchor, colour=colour, weight="bold"))
        return parts


def svg(title: str, parts: Iterable[str]) -> str:
    """The whole file."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="{INK}" role="img">',
            f"<title>{escape(title)}</title>",
            *parts,
            "</svg>\n",
        )
    )


def text(
    x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK, size: int = 13, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, … that is not smaller."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)

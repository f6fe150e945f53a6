"""A picture of a play: what was acknowledged and received over time, with marks where a node died and came back.

Written as SVG by hand, so that the base install can draw. It has no background of its own, and its colours read on
white as well as on black.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from holdfast.cli.demo.cluster_score import BIN_S

if TYPE_CHECKING:
    from holdfast.cli.demo.cluster_score import ClusterScore

_WIDTH: Final = 960
_HEIGHT: Final = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 92, 52
_INK: Final = "#777777"
_ACKNOWLEDGED: Final = "#2f9e63"
_RECEIVED: Final = "#3f83e8"
_KILLED: Final = "#d9483b"
_BACK: Final = "#b7791f"
_TICKS: Final = 5


def drawn(score: ClusterScore) -> str:
    """The whole picture as the text of an SVG file."""
    acknowledged, received = score.acknowledged_per_bin(), score.received_per_bin()
    plot = _Plot(len(acknowledged) * BIN_S, max([1.0, *acknowledged, *received]))
    parts = [
        _text(_LEFT, 26, "A leader is killed and comes back", size=17, weight="bold"),
        _text(_LEFT, 48, _subtitle(score)),
        *_legend(),
        *plot.axes(),
        plot.area(acknowledged, _ACKNOWLEDGED),
        plot.line(received, _RECEIVED),
    ]
    if score.kill_s is not None:
        parts += plot.mark(score.kill_s, f"{score.killed} killed", _KILLED)
    if score.back_s is not None:
        parts += plot.mark(score.back_s, f"{score.killed} back", _BACK)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="{_INK}" role="img">',
            f"<title>{escape(_subtitle(score))}</title>",
            *parts,
            "</svg>\n",
        )
    )


def _subtitle(score: ClusterScore) -> str:
    verdict = score.verdict()
    gap = f"longest gap {verdict['longest_gap_ms']} ms"
    return (
        f"{verdict['nodes']} nodes, {verdict['acknowledged']:,} messages acknowledged, {verdict['lost']} lost, "
        f"{verdict['duplicated']} duplicated, {verdict['out_of_order']} out of order; {gap}"
    )


def _legend() -> list[str]:
    return [
        f'<rect x="{_LEFT}" y="62" width="14" height="10" fill="{_ACKNOWLEDGED}" fill-opacity="0.55"/>',
        _text(_LEFT + 20, 72, "acknowledged"),
        f'<path d="M{_LEFT + 124} 67h18" stroke="{_RECEIVED}" stroke-width="2"/>',
        _text(_LEFT + 148, 72, "received, mean of the readers"),
        _text(_WIDTH - _RIGHT, 72, f"messages in {BIN_S * 1000:.0f} ms", anchor="end"),
    ]


class _Plot:
    """The field with its scales: seconds to the right, messages in a tenth of a second upwards."""

    def __init__(self, seconds: float, highest: float) -> None:
        self._seconds = seconds
        self._step = _round_step(highest / _TICKS)
        self._highest = math.ceil(highest / self._step) * self._step

    def x(self, at_s: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * at_s / self._seconds, 1)

    def y(self, count: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * count / self._highest, 1)

    def axes(self) -> list[str]:
        parts = []
        for tick in range(round(self._highest / self._step) + 1):
            count = tick * self._step
            y = self.y(count)
            parts.append(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="{_INK}" stroke-opacity="0.25"/>')
            parts.append(_text(_LEFT - 8, y + 4, f"{count:g}", anchor="end"))
        step_s = _round_step(self._seconds / 10)
        for tick in range(int(self._seconds / step_s) + 1):
            parts.append(_text(self.x(tick * step_s), _HEIGHT - _BOTTOM + 20, f"{tick * step_s:g} s", anchor="middle"))
        return parts

    def area(self, counts: Sequence[float], colour: str) -> str:
        """Steps, filled: each tenth of a second is as high as what happened in it."""
        steps = "".join(
            f"L{self.x(index * BIN_S)} {self.y(count)}H{self.x((index + 1) * BIN_S)}"
            for index, count in enumerate(counts)
        )
        floor = self.y(0)
        return f'<path d="M{_LEFT} {floor}{steps}V{floor}Z" fill="{colour}" fill-opacity="0.55"/>'

    def line(self, counts: Sequence[float], colour: str) -> str:
        points = " ".join(f"{self.x((index + 0.5) * BIN_S)},{self.y(count)}" for index, count in enumerate(counts))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def mark(self, at_s: float, label: str, colour: str) -> list[str]:
        x = self.x(at_s)
        floor = _HEIGHT - _BOTTOM
        return [
            f'<path d="M{x} {_TOP - 6}V{floor}" stroke="{colour}" stroke-width="2" stroke-dasharray="5 4"/>',
            _text(min(x, _WIDTH - 60), _HEIGHT - 10, label, anchor="middle", colour=colour, weight="bold"),
        ]


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, … that is not smaller."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = _INK, size: int = 13, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )

"""A picture of a long run: acknowledgements over time and where there were none, who led, and which fault was when.

It has no background of its own, and its colours read on white as well as on black.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape

from testkit.checker import gap_list, rates
from testkit.nemesis import FAULTS

from chaos.run import Outcome
from chaos.watch import CONTROL
from holdfast.cli.demo.plot import AMBER, BLUE, GREEN, INK, RED, text

GAP_S: Final = 1.0
_WIDTH: Final = 1200
_LEFT, _RIGHT, _TOP = 150, 24, 124
_RATE_HEIGHT: Final = 170
_ROW: Final = 20
_SPACE: Final = 34
_BINS: Final = 300
_WORDS_WIDTH: Final = 40
_NODE_COLOURS: Final = (
    "#3f83e8",
    "#2f9e63",
    "#b7791f",
    "#a05cc5",
    "#d9483b",
    "#2a9aa8",
    "#8a8f2a",
    "#c2558f",
    "#777777",
)
_LAYER_COLOURS: Final = {
    "nodes": RED,
    "leaders": GREEN,
    "network": BLUE,
    "weather": AMBER,
    "clocks": "#a05cc5",
}
_LAYER_WORDS: Final = {"nodes": "processes and disks", "network": "partitions", "weather": "delay and loss"}
_LED: Final = (CONTROL, "orders/0")


class Picture:
    """Seconds to the right; panels from top to bottom."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._seconds = max(outcome.seconds, 1.0)
        self._parts: list[str] = []
        self._y = float(_TOP)

    def x(self, at_s: float) -> float:
        inside = min(max(at_s, 0.0), self._seconds)
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * inside / self._seconds, 1)

    def since(self, at: float) -> float:
        return at - self._outcome.began

    def drawn(self) -> str:
        title = f"{len(self._outcome.history.members)} nodes through {len(self._outcome.bars)} faults"
        self._heading(title)
        self._rate()
        self._leaders()
        self._faults()
        self._time_axis()
        height = round(self._y + 34)
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
                f'height="{height}" font-family="system-ui, sans-serif" font-size="13" fill="{INK}" role="img">',
                f"<title>{escape(title)}</title>",
                *self._parts,
                "</svg>\n",
            )
        )

    # --- panels ----------------------------------------------------------------------------------------

    def _heading(self, title: str) -> None:
        outcome = self._outcome
        found = sum(outcome.verdict.counts.values())
        gaps = gap_list(outcome.history, GAP_S)
        worst = max((ended - began for began, ended in gaps), default=0.0)
        said = (
            f"{outcome.history.acknowledged:,} messages acknowledged, {outcome.history.delivered:,} deliveries, "
            f"{found} violations; longest time without an acknowledgement {worst:.1f} s; seed {outcome.seed}"
        )
        self._add(text(24, 30, title, size=18, weight="bold"), text(24, 54, said))
        x = float(_LEFT)
        for colour, words in ((GREEN, "acknowledged"), (RED, f"nothing acknowledged for more than {GAP_S:g} s")):
            self._add(self._box(x, 72, 14, 10, colour, 0.55 if colour == GREEN else 0.25), text(x + 20, 82, words))
            x += 40 + 7.2 * len(words)
        for index, node in enumerate(outcome.history.members):
            self._add(self._box(x, 72, 14, 10, _colour(index), 0.9), text(x + 20, 82, f"{node} leads"))
            x += 86

    def _rate(self) -> None:
        outcome = self._outcome
        bin_s = max(1.0, self._seconds / _BINS)
        counts = rates(outcome.history, outcome.began, self._seconds, bin_s)
        step = _round_step(max([1.0, *counts]) / 4)
        highest = math.ceil(max([1.0, *counts]) / step) * step
        bottom = self._y + _RATE_HEIGHT

        def y(count: float) -> float:
            return round(bottom - _RATE_HEIGHT * count / highest, 1)

        for tick in range(round(highest / step) + 1):
            self._line(y(tick * step))
            self._add(text(_LEFT - 8, y(tick * step) + 4, f"{tick * step:,.0f}", anchor="end"))
        self._add(text(24, self._y - 14, "acknowledged a second", weight="bold"))
        steps = "".join(
            f"L{self.x(index * bin_s)} {y(count)}H{self.x((index + 1) * bin_s)}" for index, count in enumerate(counts)
        )
        area = f"M{_LEFT} {bottom}{steps}V{bottom}Z"
        self._add(f'<path d="{area}" fill="{GREEN}" fill-opacity="0.55"/>')
        gaps = gap_list(outcome.history, GAP_S)
        labelled: list[float] = []
        for began, ended in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
            left, right = self.x(self.since(began)), self.x(self.since(ended))
            self._add(self._box(left, self._y, max(1.5, right - left), _RATE_HEIGHT, RED, 0.25))
            middle = (left + right) / 2
            # The longest first; of those close to it there is no room to tell.
            if all(abs(middle - other) > _WORDS_WIDTH for other in labelled):
                labelled.append(middle)
                words = f"{ended - began:.1f} s"
                self._add(text(round(middle, 1), self._y - 4, words, anchor="middle", colour=RED, size=11))
        self._y = bottom + _SPACE

    def _leaders(self) -> None:
        self._add(text(24, self._y - 8, "who led", weight="bold"))
        members = self._outcome.history.members
        for group in _LED:
            self._label(group)
            for reign in self._outcome.reigns.get(group, ()):
                left, right = self.x(self.since(reign.began)), self.x(self.since(reign.ended))
                colour = _colour(members.index(reign.node))
                self._add(self._box(left, self._y + 3, max(1.5, right - left), _ROW - 6, colour, 0.9))
            self._y += _ROW
        self._y += _SPACE

    def _faults(self) -> None:
        self._add(text(24, self._y - 8, "what was wrong", weight="bold"))
        x = float(_LEFT + 12)
        for layer, colour in _LAYER_COLOURS.items():
            words = _LAYER_WORDS.get(layer, layer)
            self._add(self._box(x, self._y - 17, 14, 10, colour, 0.8), text(x + 20, self._y - 8, words))
            x += 44 + 7.2 * len(words)
        self._y += 4
        for name, kind in FAULTS.items():
            bars = [bar for bar in self._outcome.bars if bar.name == name]
            if not bars:
                continue
            self._label(name)
            self._line(self._y + _ROW, 0.15)
            for bar in bars:
                left, right = self.x(self.since(bar.began)), self.x(self.since(bar.ended or bar.began))
                box = self._box(left, self._y + 4, max(2.0, right - left), _ROW - 7, _LAYER_COLOURS[kind.layer], 0.8)
                seconds = (bar.ended or bar.began) - bar.began
                self._add(
                    box.replace("/>", f"><title>{escape(f'{name}: {bar.detail}, {seconds:.1f} s')}</title></rect>")
                )
                self._detail(bar.detail, left, right)
            self._y += _ROW

    def _detail(self, words: str, left: float, right: float) -> None:
        """Inside its bar, where there is room for it."""
        if len(words) * 6.0 < right - left:
            self._add(text((left + right) / 2, self._y + 15, words, anchor="middle", colour="#ffffff", size=10))

    def _time_axis(self) -> None:
        step_s = _round_time(self._seconds / 10)
        for tick in range(int(self._seconds / step_s) + 1):
            x = self.x(tick * step_s)
            minutes, seconds = divmod(round(tick * step_s), 60)
            self._add(
                f'<path d="M{x} {_TOP}V{self._y}" stroke="{INK}" stroke-opacity="0.15"/>',
                text(x, self._y + 20, f"{minutes}:{seconds:02d}", anchor="middle"),
            )
        self._add(text(24, self._y + 20, "minutes", weight="bold"))

    # --- pieces ----------------------------------------------------------------------------------------

    def _add(self, *parts: str) -> None:
        self._parts.extend(parts)

    def _label(self, words: str) -> None:
        self._add(text(_LEFT - 8, self._y + 15, words, anchor="end"))

    def _line(self, y: float, opacity: float = 0.25) -> None:
        self._add(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="{INK}" stroke-opacity="{opacity}"/>')

    def _box(self, x: float, y: float, width: float, height: float, colour: str, opacity: float) -> str:
        size = f'width="{width:.1f}" height="{height:.1f}"'
        return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" fill-opacity="{opacity}"/>'


def drawn(outcome: Outcome) -> str:
    """The whole picture as the text of an SVG file."""
    return Picture(outcome).drawn()


def _colour(index: int) -> str:
    return _NODE_COLOURS[index % len(_NODE_COLOURS)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _round_time(rough_s: float) -> float:
    steps: Iterable[float] = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200)
    return next((step for step in steps if step >= rough_s), 3600.0)

"""Pictures and a page for them, drawn as SVG and HTML by hand: one file that needs no network, in light and dark.

Colours are names (`--green`), which the page gives their values, so that a picture fits whatever the reader prefers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 960
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 40, 48
_TICKS: Final = 5
_STYLE: Final = """
:root { --back: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --blue: #2563c9; --green: #1a7f4b;
  --red: #c62f25; --amber: #9a6700; --violet: #7a3fc0; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d;
  --blue: #6ea8fe; --green: #4cc38a; --red: #ff7b72; --amber: #e3b341; --violet: #bc8cff; } }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p { color: var(--faint); } .good { color: var(--green); } .bad { color: var(--red); }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--faint); font-weight: 600; } th.text, td.text { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font: 13px system-ui, sans-serif; }
"""


class Series(NamedTuple):
    """One line of a chart: its name, a colour of the page, and a number, or none, for each stretch of time."""

    name: str
    colour: str
    values: Sequence[float | None]


def over_time(title: str, unit: str, bin_s: float, series: Sequence[Series]) -> str:
    """Lines over the seconds since the beginning."""
    bins = max((len(each.values) for each in series), default=0)
    seconds = max(bin_s, bins * bin_s)
    highest = max((value for each in series for value in each.values if value is not None), default=0)
    step = _round_step(max(highest, 1e-9) / _TICKS) if highest > 0 else 1
    top = max(step, math.ceil(highest / step) * step)
    floor, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT

    def x(at_s: float) -> float:
        return round(_LEFT + (right - _LEFT) * at_s / seconds, 1)

    def y(value: float) -> float:
        return round(floor - (floor - _TOP) * max(0.0, value) / top, 1)

    parts = []
    for tick in range(round(top / step) + 1):
        height = y(tick * step)
        parts.append(f'<path d="M{_LEFT} {height}H{right}" stroke="var(--line)"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{height + 4}" text-anchor="end">{tick * step:,g}</text>')
    step_s = _round_step(seconds / 10)
    for tick in range(int(seconds / step_s) + 1):
        parts.append(f'<text x="{x(tick * step_s)}" y="{floor + 18}" text-anchor="middle">{tick * step_s:g}</text>')
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">seconds since the start</text>'
    )
    parts.append(f'<text x="4" y="16">{escape(unit)}</text>')
    place = _LEFT + 180
    for each in series:
        parts.append(f'<path d="M{place} 12h18" stroke="var(--{each.colour})" stroke-width="3"/>')
        parts.append(f'<text x="{place + 24}" y="16">{escape(each.name)}</text>')
        place += 44 + 8 * len(each.name)
        parts += _lines(each, bin_s, x, y)
    picture = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>\n{picture}\n</svg>'


def _lines(series: Series, bin_s: float, x: object, y: object) -> list[str]:
    """A line for each run of numbers; one that stands alone is a dot."""
    assert callable(x) and callable(y)
    found, run = [], []
    for index, value in enumerate([*series.values, None]):
        if value is not None:
            run.append(f"{x((index + 0.5) * bin_s)} {y(value)}")
        elif run:
            path = f"M{'L'.join(run)}" if len(run) > 1 else f"M{run[0]}h0"
            style = 'stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" fill="none"'
            width = style if len(run) > 1 else style.replace("1.8", "5")
            found.append(f'<path d="{path}" stroke="var(--{series.colour})" {width}/>')
            run = []
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, text: Sequence[str] = ()) -> str:
    """Numbers to the right; columns of `text` to the left."""

    def cell(kind: str, name: str, content: object) -> str:
        shown = f"{content:,}" if isinstance(content, int) and not isinstance(content, bool) else str(content)
        attribute = ' class="text"' if name in text else ""
        return f"<{kind}{attribute}>{escape(shown)}</{kind}>"

    head = "".join(cell("th", name, name) for name in columns)
    body = "\n".join(
        f"<tr>{''.join(cell('td', name, value) for name, value in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def page(title: str, parts: Iterable[str]) -> str:
    """The whole file."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, … that is not smaller."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)

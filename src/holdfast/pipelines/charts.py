"""Pictures and a page for them, drawn as SVG and HTML by hand: one file that needs no network, in light and dark.

Colours are names (`--green`), which the page gives their values, so that a picture fits whatever the reader prefers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 960
HEIGHT: Final = 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 20, 30, 48
_TICKS: Final = 5
# A text in a table that is longer is wrapped.
_LONG_CHARACTERS: Final = 36
_TIME_TICKS: Final = 10
# A span is told in the first of these units of which it has few enough, with ticks that people know from clocks.
_TIME_UNITS: Final = (
    ("seconds", 1, 300, (1, 2, 5, 10, 20, 30)),
    ("minutes", 60, 300, (1, 2, 5, 10, 15, 20, 30)),
    ("hours", 3600, 120, (1, 2, 3, 6, 12)),
    ("days", 86_400, math.inf, (1, 2, 7, 14, 28)),
)
# Both ways from 1970 a calendar has dates at least this far.
_CALENDAR_MS: Final = 62_000_000_000_000
_BYTE_UNITS: Final = ((1, "bytes"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))
_STYLE: Final = """
:root { --back: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --shade: #f3f5f8; --blue: #2563c9;
  --green: #1a7f4b; --red: #c62f25; --amber: #9a6700; --violet: #7a3fc0; --teal: #0b7a8a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d;
  --shade: #161b22; --blue: #6ea8fe; --green: #4cc38a; --red: #ff7b72; --amber: #e3b341; --violet: #bc8cff;
  --teal: #56d4dd; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1200px;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; overflow-wrap: anywhere; }
p { color: var(--faint); margin: .5rem 0; max-width: 48rem; }
.good, .bad { font-weight: 600; } .good { color: var(--green); } .bad { color: var(--red); }
figure { margin: .5rem 0 1rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--faint); font-weight: 600; vertical-align: bottom; } th.text, td.text { text-align: left; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 16rem; max-width: 28rem; }
svg { display: block; width: 100%; min-width: 620px; height: auto; }
svg text { fill: var(--faint); font: 13px system-ui, sans-serif; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; color: var(--ink); font-size: .9rem; }
.legend i { display: inline-block; width: 1.1rem; height: .25rem; border-radius: 2px; margin-right: .4rem;
  vertical-align: middle; }
.bars { display: grid; grid-template-columns: minmax(5rem, max-content) minmax(4rem, 1fr) max-content;
  gap: .3rem .75rem; align-items: center; font-size: .9rem; font-variant-numeric: tabular-nums; }
.bars span { overflow-wrap: anywhere; max-width: 22rem; } .bars span + div + span { color: var(--faint); }
.bars div { background: var(--shade); border-radius: 3px; } .bars i { display: block; height: .8rem; border-radius: 3px;
  min-width: 2px; }
"""


class Series(NamedTuple):
    """One line of a chart: its name, a colour of the page, and a number, or none, for each stretch of time.

    One that `is_behind` is broad and pale, so that it is seen where another one runs along it.
    """

    name: str
    colour: str
    values: Sequence[float | None]
    is_behind: bool = False


def over_time(
    title: str,
    unit: str,
    bin_s: float,
    series: Sequence[Series],
    *,
    from_ms: int | None = None,
    is_stacked: bool = False,
) -> str:
    """Lines over the time since the beginning, which was at `from_ms`; or columns, with one series upon another."""
    bins = max((len(each.values) for each in series), default=0)
    seconds = max(bin_s, bins * bin_s)
    if is_stacked:
        heights: Iterable[float] = (
            sum(filter(None, each)) for each in zip(*(line.values for line in series), strict=True)
        )
    else:
        heights = (value for line in series for value in line.values if value is not None)
    highest = max(heights, default=0)
    step = _round_step(max(highest, 1e-9) / _TICKS) if highest > 0 else 1
    top = max(step, math.ceil(round(highest / step, 6)) * step)
    floor, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT

    def x(at_s: float) -> float:
        return round(_LEFT + (right - _LEFT) * at_s / seconds, 1)

    def y(value: float) -> float:
        return round(floor - (floor - _TOP) * max(0.0, value) / top, 1)

    parts = []
    for tick in range(round(top / step) + 1):
        height = y(tick * step)
        parts.append(f'<path d="M{_LEFT} {height}H{right}" stroke="var(--line)"/>')
        parts.append(f'<text x="{_LEFT - 10}" y="{height + 4}" text-anchor="end">{_number(tick * step)}</text>')
    time_unit, unit_s, step_s = _time_ticks(seconds)
    for tick in range(int(seconds / step_s + 1e-9) + 1):
        at = x(tick * step_s)
        parts.append(f'<path d="M{at} {floor}v5" stroke="var(--line)"/>')
        parts.append(f'<text x="{at}" y="{floor + 19}" text-anchor="middle">{_number(tick * step_s / unit_s)}</text>')
    axis = f"{time_unit} since {_start(from_ms)}"
    parts.append(f'<text x="{_LEFT}" y="{HEIGHT - 6}">{axis}</text>')
    parts.append(f'<text x="{_LEFT}" y="16">{escape(unit)}</text>')
    if is_stacked:
        parts += _columns(series, bin_s, x, y)
    else:
        parts += [path for line in series for path in _lines(line, bin_s, x, y)]
    picture = "\n".join(parts)
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>\n{picture}\n</svg>'
    return f'<figure>{_legend(series)}<div class="scroll">{drawn}</div></figure>'


def _legend(series: Sequence[Series]) -> str:
    names = (f'<span><i style="background:var(--{each.colour})"></i>{escape(each.name)}</span>' for each in series)
    return f'<figcaption class="legend">{"".join(names)}</figcaption>'


def _time_ticks(seconds: float) -> tuple[str, int, float]:
    """In which unit a span is told, how long that is, and how far its ticks are apart."""
    unit, unit_s, _, steps = next(each for each in _TIME_UNITS if seconds <= each[1] * each[2])
    fits = (step * unit_s for step in steps if seconds / (step * unit_s) <= _TIME_TICKS)
    if seconds <= _TIME_TICKS:
        return unit, unit_s, _round_step(seconds / _TIME_TICKS)
    return unit, unit_s, next(fits, None) or _round_step(seconds / unit_s / _TIME_TICKS) * unit_s


def _start(at_ms: int | None) -> str:
    """A date that people have seen on a calendar, or the start."""
    return "the start" if at_ms is None or not 0 < at_ms < _CALENDAR_MS else moment(at_ms)


def moment(at_ms: int, *, with_ms: bool = False) -> str:
    """A time as people write it; what no calendar has stays a number."""
    if not -_CALENDAR_MS < at_ms < _CALENDAR_MS:
        return str(at_ms)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    return f"{at:%Y-%m-%d %H:%M:%S}{f'.{at_ms % 1000:03}' if with_ms else ''} UTC"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _TICKS and value == round(value) else f"{value:,g}"


def byte_unit(highest: float) -> tuple[int, str]:
    """What to divide by so that the highest number of bytes reads well, and what the result counts."""
    return next((each for each in reversed(_BYTE_UNITS) if highest >= each[0]), _BYTE_UNITS[0])


def bytes_text(size: float) -> str:
    divisor, unit = byte_unit(size)
    return f"{size:,.0f} {unit}" if divisor == 1 else f"{size / divisor:,.1f} {unit}"


def bars(colour: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """A name, a bar and what the bar says, for each row; the longest fills its place."""
    longest = max((value for _, value, _ in rows), default=0) or 1
    cells = (
        f"<span>{escape(name)}</span>"
        f'<div><i style="width:{100 * value / longest:.1f}%;background:var(--{colour})"></i></div>'
        f"<span>{escape(words)}</span>"
        for name, value, words in rows
    )
    return f'<div class="bars">{"".join(cells)}</div>'


def _lines(series: Series, bin_s: float, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    """A line for each run of numbers; one that stands alone is a dot."""
    found, run = [], []
    for index, value in enumerate([*series.values, None]):
        if value is not None:
            run.append(f"{x((index + 0.5) * bin_s)} {y(value)}")
        elif run:
            path = f"M{'L'.join(run)}" if len(run) > 1 else f"M{run[0]}h0"
            width = 5 if len(run) == 1 or series.is_behind else 1.8
            style = f'stroke-width="{width}" stroke-linecap="round" stroke-linejoin="round" fill="none"'
            pale = ' stroke-opacity="0.45"' if series.is_behind else ""
            found.append(f'<path d="{path}" stroke="var(--{series.colour})" {style}{pale}/>')
            run = []
    return found


def _columns(
    series: Sequence[Series], bin_s: float, x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    """A column for each stretch of time, with a piece of it for each series."""
    found = []
    for index, values in enumerate(zip(*(line.values for line in series), strict=True)):
        left, below = x((index + 0.1) * bin_s), 0.0
        width = max(1.5, round(x((index + 0.9) * bin_s) - left, 1))
        for line, value in zip(series, values, strict=True):
            if value:
                path = f"M{left} {y(below)}V{y(below + value)}h{width}V{y(below)}z"
                found.append(f'<path d="{path}" fill="var(--{line.colour})"/>')
                below += value
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, text: Sequence[str] = ()) -> str:
    """Numbers to the right; columns of `text` to the left."""

    def cell(kind: str, name: str, content: object) -> str:
        shown = f"{content:,}" if isinstance(content, int) and not isinstance(content, bool) else str(content)
        kinds = [*(["text"] if name in text else []), *(["long"] if len(shown) > _LONG_CHARACTERS else [])]
        attribute = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{kind}{attribute}>{escape(shown)}</{kind}>"

    head = "".join(cell("th", name, name) for name in columns)
    body = "\n".join(
        f"<tr>{''.join(cell('td', name, value) for name, value in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    made = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="scroll">{made}</div>'


def page(title: str, parts: Iterable[str], *, again_s: float | None = None) -> str:
    """The whole file; with `again_s` whoever has it open sees it anew so often."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    if again_s is not None:
        head += f'<meta http-equiv="refresh" content="{max(1, math.ceil(again_s))}">'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, … that is not smaller."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)

"""A run as one picture: a panel for each work, a bar for each contender, the ratios written on the bars."""

from pathlib import Path
from typing import Any

from benchmarks.figures import FIGURES, short
from benchmarks.measure import Line, WorkResult
from benchmarks.report import WEAKER, Run, number, ratio

OURS, PEERS, TEXT, FAINT = "#0f766e", "#b6bec9", "#1f2937", "#6b7280"
COLUMNS = 2
WIDTH_INCHES = 15.0
BAR_INCHES = 0.42
PANEL_INCHES = 1.1
BARS_MIN = 3
HEAD_INCHES = 1.0
DOTS_PER_INCH = 110


def draw(run: Run, path: Path) -> None:
    """Draw every work that has figures; nothing is written when none has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = [result for result in run.results if _bars(result)]
    if not results:
        return
    rows = [results[start : start + COLUMNS] for start in range(0, len(results), COLUMNS)]
    heights = [PANEL_INCHES + BAR_INCHES * max(BARS_MIN, *(len(_bars(result)) for result in row)) for row in rows]
    figure = pyplot.figure(figsize=(WIDTH_INCHES, sum(heights) + HEAD_INCHES), dpi=DOTS_PER_INCH)
    grid = figure.add_gridspec(len(rows), COLUMNS, height_ratios=heights)
    for row_number, row in enumerate(rows):
        for column, result in enumerate(row):
            room = max(BARS_MIN, *(len(_bars(other)) for other in row))
            _panel(figure.add_subplot(grid[row_number, column]), result, room)
    figure.suptitle(
        f"Holdfast beside its peers · {_sizes(run)}", x=0.01, ha="left", fontsize=16, color=TEXT, weight="bold"
    )
    figure.text(0.01, 0.005, f"{run.machine}\n{WEAKER}", fontsize=9, color=FAINT)
    figure.tight_layout(rect=(0, 0.035, 1, 0.99), h_pad=2.0, w_pad=2.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def _sizes(run: Run) -> str:
    how = "quick look" if run.settings.quick else f"median of {run.settings.rounds} rounds"
    return f"100-byte messages, {how}"


def _bars(result: WorkResult) -> list[Line]:
    return [line for line in result.lines if line.median(result.work.figure) is not None]


def _panel(axes: Any, result: WorkResult, room: int) -> None:
    lines = _bars(result)
    values = [line.median(result.work.figure) or 0.0 for line in lines]
    colours = [OURS if line.peer == "holdfast" else PEERS for line in lines]
    hatches = ["///" if line.weaker else "" for line in lines]
    names = [f"{line.contender}{' †' if line.weaker else ''}\n{line.setting}" for line in lines]
    axes.barh(range(len(lines)), values, color=colours, hatch=hatches, edgecolor="white", height=0.7)
    axes.set_yticks(range(len(lines)), names, fontsize=8.5, color=TEXT)
    # A panel is as high as its neighbour: its own bars stay as thick and start at the top.
    axes.set_ylim(room - 0.4, -0.6)
    axes.set_xlim(0, max(values) * 1.38)
    for position, (line, value) in enumerate(zip(lines, values, strict=True)):
        label = _label(result, line, value)
        axes.text(value + max(values) * 0.012, position, label, va="center", fontsize=9, color=TEXT)
    axes.set_title(f"{result.work.title}\n", loc="left", fontsize=11, color=TEXT, weight="bold")
    unit = f"{FIGURES[result.work.figure].heading}, {result.work.better} is better"
    axes.text(0, 1.02, unit, transform=axes.transAxes, fontsize=8.5, color=FAINT)
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label(result: WorkResult, line: Line, value: float) -> str:
    if value >= 1e6:
        shown = f"{value / 1e6:.2f} M"
    elif value >= 1e4:
        shown = f"{value / 1e3:,.0f} k"
    else:
        shown = number(value)
    multiple = ratio(result, line)
    if multiple is None:
        return shown
    digits = f"{multiple:.0f}" if multiple >= 10 else f"{multiple:.2g}"
    return f"{shown}   {digits}× {short(line.against)}"

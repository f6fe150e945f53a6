"""What commands print: results on standard output, everything else on standard error.

rich is imported when something is drawn with it, so that commands whose output is plain start quickly.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


_PIPE_COLUMNS = 500


def print_json(result: Any) -> None:
    """One object on one line, out at once: whoever reads a stream waits for it."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal, never part of the output."""
    print(text, file=sys.stderr, flush=True)


def console() -> Console:
    """Where results are drawn. In a pipe nothing is wrapped: paths must stay whole for grep."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table without lines; columns that are `numbers` are set to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return made


def counter(unit: str) -> Progress:
    """A line that counts up, for work whose end is not known; shown on a terminal only."""
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s")

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,.0f} " + unit),
        Speed(),
        TimeElapsedColumn(),
        console=error_console(),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def bar(*, in_bytes: bool = False) -> Progress:
    """A progress bar on standard error; shown on a terminal only."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=error_console(),
        disable=not sys.stderr.isatty(),
        transient=True,
    )

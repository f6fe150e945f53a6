"""What commands print: results on standard output, everything else on standard error.

rich is imported when something is drawn with it, so that commands whose output is plain start quickly.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text


_PIPE_COLUMNS = 500
# What JSON leaves as it is, and a terminal takes for commands.
_CONTROLS = re.compile("[\x7f-\x9f]")


def print_json(result: Any) -> None:
    """One object on one line, out at once: whoever reads a stream waits for it."""
    import msgspec

    text = _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(result).decode())
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """What messages, records and brokers say may come from anybody: nothing of it is for the terminal itself."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def note(text: str) -> None:
    """A line for the person at the terminal, never part of the output."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def clear_line() -> None:
    """Make room where a line of progress stands: what comes next would begin behind it."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def console() -> Console:
    """Where results are drawn. In a pipe nothing is wrapped: paths must stay whole for grep."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def coloured(text: str, colour: str) -> Text:
    """A cell of a table; what is appended to it has no colour."""
    from rich.text import Text

    return Text().append(printable(text), colour)


def table(*columns: str, numbers: tuple[str, ...] = (), has_markup: bool = False) -> Table:
    """A table without lines; columns that are `numbers` are set to the right.

    What is in its cells comes from brokers, receivers and files, and is shown as it is: `[::1]` is an address; only
    what is not printable is escaped. With `has_markup`, whoever adds a row escapes such text.
    """
    from rich.table import Table
    from rich.text import Text

    class AsItIs(Table):
        def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
            super().add_row(*(Text(printable(each)) if isinstance(each, str) else each for each in cells), **more)

    made = (Table if has_markup else AsItIs)(box=None, pad_edge=False, header_style="bold")
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

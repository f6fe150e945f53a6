"""What somebody who watches a cluster sees: a live table on a terminal, else a line for everything that changes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.cli import cluster_table, output
from holdfast.cli.cluster_table import cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from holdfast.cli.up.supervisor import Row

_EVENTS_SHOWN: Final = 8
_REFRESH_PER_S: Final = 4


class View:
    """`tell` adds to what happened; `changed` looks at the rows; `shown` draws until the end of its block."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self.rows: Callable[[], list[Row]] = list
        self._quiet = quiet
        self._as_json = as_json
        self._is_live = not (quiet or as_json) and sys.stdout.isatty()
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._said: dict[str, object] = {}

    def tell(self, text: str) -> None:
        if self._is_live:
            self._events.append(f"{time.strftime('%H:%M:%S')}  {text}")
        elif self._as_json:
            output.print_json({"event": text})
        elif not self._quiet:
            print(text, flush=True)

    def greet(self, text: str) -> None:
        """For people only."""
        if not (self._quiet or self._as_json):
            print(text, flush=True)

    def changed(self) -> None:
        """Say what is different now. How far a node is behind changes all the time, and is no news by itself."""
        if self._is_live or self._quiet:
            return
        rows = self.rows()
        news = [row for row in rows if self._said.get(row.id) != row._replace(lag=None)]
        self._said |= {row.id: row._replace(lag=None) for row in news}
        if news and self._as_json:
            output.print_json({"nodes": [row._asdict() for row in rows]})
            return
        for row in news:
            print(_line(row), flush=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._is_live:
            yield
            return

        from rich.live import Live

        with Live(get_renderable=self._drawn, console=output.console(), refresh_per_second=_REFRESH_PER_S):
            yield

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        table = cluster_table.table("pid")
        for row in self.rows():
            table.add_row(row.id, cluster_table.state_text(row.state), *map(cell, row[2:-1]), str(row.pid or "-"))
        return Group(table, *(Text(line, "dim") for line in self._events))


def _line(row: Row) -> str:
    parts = [f"{row.id} {row.state}"]
    if row.role is not None:
        parts += [row.role, f"term {row.term}", f"leads {row.leads}"]
    parts += [f"text {row.text}", f"http {row.http}", f"peer {row.peer}"]
    if row.pid is not None:
        parts.append(f"process {row.pid}")
    return ", ".join(parts)

"""What somebody who watches the demo sees: a live table on a terminal, lines where there is none."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.demo.play import Score

_EVENTS_SHOWN: Final = 12
_REFRESH_PER_S: Final = 8


class View:
    """Shows what `draw` makes of the seconds so far; `tell` adds a line to what happened.

    Seconds count from the start, or from `begin`: a play that draws a picture counts from its first message there, and
    its words have to count from the same moment.
    """

    def __init__(
        self,
        draw: Callable[[float], list[RenderableType]],
        *,
        quiet: bool,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw = draw
        self._quiet = quiet
        self._monotonic_s = monotonic_s
        self._started = monotonic_s()
        self._events: list[str] = []

    def begin(self) -> None:
        """Time counts from now on. What was told before stays as it was told."""
        self._started = self._monotonic_s()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._monotonic_s() - self._started

    def tell(self, text: str, at_s: float | None = None) -> None:
        """Add a line: of what happened now, or at a moment that stands in the picture as well."""
        line = f"{self.seconds if at_s is None else at_s:6.1f} s  {text}"
        self._events.append(line)
        if not (self._quiet or sys.stdout.isatty()):
            print(line, flush=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the picture fresh until the end of the block; what the clients notice becomes events."""
        log = logging.getLogger("holdfast.client")
        handler = _Teller(self.tell)
        log.addHandler(handler)
        log.propagate = False
        try:
            if self._quiet or not sys.stdout.isatty():
                yield
                return

            from rich.live import Live

            with Live(get_renderable=self._drawn, console=output.console(), refresh_per_second=_REFRESH_PER_S):
                yield
        finally:
            log.removeHandler(handler)

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        drawn = self._draw(self.seconds)
        return Group(*drawn, *(Text(line, "dim") for line in self._events[-_EVENTS_SHOWN:]))


class _Teller(logging.Handler):
    """Every reader and the publisher notice that a broker is gone; said once, it is enough."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind = str(record.msg)
        if record.created - self._said.get(kind, 0.0) > 1.0:
            self._tell(f"clients: {record.getMessage()}")
        self._said[kind] = record.created


def drawn(score: Score, seconds: float) -> list[RenderableType]:
    """How the broker and its readers are, while the play goes on."""
    from rich.text import Text

    colours = {"dead": "bold red", "serves": "green", "serves again": "green"}
    heading = Text.assemble("broker ", (score.broker, colours.get(score.broker, "yellow")), f", {seconds:.0f} s")
    return [heading, table(score)]


def table(score: Score) -> Any:
    """The verdict so far, a line for each reader."""
    columns = ("reader", "sent", "acknowledged", "received", "lost", "duplicated", "out of order")
    made = output.table(*columns, numbers=columns[1:], has_markup=True)
    for name, verdict in score.verdicts().items():
        made.add_row(
            name,
            str(score.sent),
            str(len(score.acknowledged)),
            str(verdict.received),
            f"[red]{verdict.lost}[/red]" if verdict.lost else "0",
            str(verdict.duplicated),
            str(verdict.out_of_order),
        )
    return made

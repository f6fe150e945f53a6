"""What somebody who watches the play with a pair sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output
from holdfast.cli.quantities import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.demo.failover_score import FailoverScore

_COLOURS: Final = {"serves": "green", "waits": "cyan", "killed": "bold red", "starting": "yellow"}


def drawn(score: FailoverScore, seconds: float) -> list[RenderableType]:
    """The two brokers and the count so far, while the play goes on."""
    from rich.text import Text

    heading = Text(f"{seconds:.0f} s  ")
    for role, state in score.states.items():
        heading.append(f" {role} ").append(state, _COLOURS.get(state, "")).append(" ")
    if score.arrivals:
        last = score.arrivals[-1]
        heading.append(f"  last message: {last.number}, from the {last.role}")
    return [heading, table(score)]


def table(score: FailoverScore) -> Any:
    """The verdict so far."""
    verdict = score.verdict()
    columns = ("sent", "acknowledged", "received", "lost", "duplicated", "out of order", "longest gap")
    made = output.table(*columns, numbers=columns, has_markup=True)
    flaws = (verdict[name] for name in ("lost", "duplicated", "out_of_order"))
    made.add_row(
        *(f"{verdict[name]:,}" for name in ("sent", "acknowledged", "received")),
        *(f"[red]{count}[/red]" if count else "0" for count in flaws),
        f"{verdict['longest_gap_ms']} ms",
    )
    return made


def summary(score: FailoverScore) -> str:
    """The verdict in words."""
    verdict = score.verdict()
    failover = "never" if verdict["failover_ms"] is None else f"{verdict['failover_ms']} ms after the kill"
    lines = [
        f"first message from the backup: {failover}; {verdict['resent']:,} sent again to it, "
        f"{verdict['recognised']:,} came twice and were shown once"
    ]
    if score.refused:
        lines.append(f"[yellow]Not acknowledged in time: {plural(score.refused, 'message')}.[/yellow]")
    if score.is_flawless:
        lines.append(
            f"[green]The primary was killed; of {verdict['acknowledged']:,} acknowledged messages none was lost, "
            "repeated or out of order.[/green]"
        )
    else:
        lines.append("[red]Acknowledged messages were lost, repeated or out of order; the table says how many.[/red]")
    return "\n".join(lines)

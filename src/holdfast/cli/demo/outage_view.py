"""What somebody who watches the play with a database sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output
from holdfast.cli.quantities import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.demo.outage_score import OutageScore

_COLOURS: Final = {"serves": "green", "serves again": "green", "killed": "bold red", "starting": "yellow"}


def drawn(score: OutageScore, seconds: float) -> list[RenderableType]:
    """The broker, its database and the count so far, while the play goes on."""
    from rich.text import Text

    heading = Text(f"{seconds:.0f} s  ")
    for what, state in score.states.items():
        heading.append(f" {what} ").append(state, _COLOURS.get(state, "")).append(" ")
    waiting = max(0, len(score.answers) - score.rows)
    heading.append(f"  {score.rows:,} rows in the database, {waiting:,} acknowledged and not there yet")
    return [heading, table(score)]


def table(score: OutageScore) -> Any:
    """The verdict so far; what is lost is known at the end only."""
    verdict = score.verdict()
    columns = ("sent", "acknowledged", "of these buffered", "stored", "lost", "duplicated", "out of order")
    made = output.table(*columns, numbers=columns, has_markup=True)
    flaws = [verdict[name] for name in ("lost", "duplicated", "out_of_order")] if score.stored else []
    made.add_row(
        *(f"{verdict[name]:,}" for name in ("sent", "acknowledged", "buffered")),
        f"{verdict['stored']:,}" if score.stored else "",
        *((f"[red]{count}[/red]" if count else "0" for count in flaws) if flaws else ("", "", "")),
    )
    return made


def summary(score: OutageScore) -> str:
    """The verdict in words."""
    verdict = score.verdict()
    replayed = "never" if verdict["replayed_ms"] is None else f"{verdict['replayed_ms']} ms after it was back"
    lines = [
        f"everything buffered was in the database {replayed}; the slowest acknowledgement took "
        f"{verdict['slowest_acknowledgement_ms']} ms, with a broker that was away meanwhile"
    ]
    if score.refused:
        lines.append(f"[yellow]Not acknowledged: {plural(score.refused, 'message')}.[/yellow]")
    if score.is_flawless:
        lines.append(
            f"[green]The database was killed, then the broker, too; of {verdict['acknowledged']:,} acknowledged "
            "messages none was lost, repeated or out of order.[/green]"
        )
    else:
        lines.append("[red]Acknowledged messages were lost, repeated or out of order; the table says how many.[/red]")
    return "\n".join(lines)

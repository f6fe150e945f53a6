"""What somebody who watches the play with a cluster sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.demo.cluster_score import ClusterScore

_COLOURS: Final = {"up": "green", "up again": "green", "killed": "bold red", "starting": "yellow"}


def drawn(score: ClusterScore, seconds: float) -> list[RenderableType]:
    """The nodes and the readers, while the play goes on."""
    from rich.text import Text

    heading = Text(f"{seconds:.0f} s  ")
    for node, state in score.nodes.items():
        leads = ", leads" if node == score.leader else ""
        heading.append(f" {node} ").append(f"{state}{leads}", _COLOURS.get(state, "")).append(" ")
    return [heading, table(score)]


def table(score: ClusterScore) -> Any:
    """The verdict so far, a line for each reader."""
    columns = ("reader", "sent", "acknowledged", "received", "lost", "duplicated", "out of order")
    made = output.table(*columns, numbers=columns[1:], has_markup=True)
    for reader in score.readers:
        verdict = score.judged(reader)
        flaws = (f"[red]{count}[/red]" if count else "0" for count in verdict[1:])
        made.add_row(reader.name, f"{score.sent:,}", f"{len(score.acks):,}", f"{verdict.received:,}", *flaws)
    return made


def summary(score: ClusterScore) -> str:
    """The verdict in words."""
    failover = "-" if score.failover_s is None else f"{score.failover_s * 1000:.0f} ms"
    lines = [
        f"longest gap between two acknowledgements {score.longest_gap_s * 1000:.0f} ms, "
        f"first message after the kill acknowledged after {failover}"
    ]
    if score.refused:
        lines.append(f"[yellow]{score.refused:,} messages were refused; nobody was told that they are stored.[/yellow]")
    if score.is_flawless:
        lines.append(
            f"[green]The leader was killed and came back; of {len(score.acks):,} acknowledged messages none was lost, "
            "repeated or out of order.[/green]"
        )
    else:
        lines.append("[red]Acknowledged messages were lost, repeated or out of order; the table says how many.[/red]")
    return "\n".join(lines)

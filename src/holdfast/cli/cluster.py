"""`holdfast cluster`: how a cluster is, and who shall lead. Nodes that come and go are in `members`."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import cluster_table, members, output, session
from holdfast.cli.cluster_table import cell
from holdfast.cli.options import SERVER_DEFAULT, Json, Server, examples

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from holdfast.model.cluster import ClusterDescription, NodeDescription, PairDescription

app = typer.Typer(help="Look at a cluster, say who shall lead, and have nodes come and go.", no_args_is_help=True)
members.register(app)

EXIT_NO_QUORUM: Final = 1
_WIDE: Final = 1000
# What fits into 80 columns.
_NARROW: Final = ("node", "state", "role", "leads", "lag", "http")
_PARTITION = re.compile(r"(?P<topic>.+?)(?:/(?P<partition>[0-9]{1,6}))?\Z")


@app.command(
    "status",
    epilog=examples(
        "holdfast cluster status",
        "holdfast cluster status --server 10.0.0.5:8090,10.0.0.6:8090",
        "holdfast cluster status --json | jq .leader",
    ),
)
def status(
    wide: Annotated[bool, typer.Option("--wide", help="All columns, also where they do not fit.")] = False,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the nodes: who is there, who leads, who is how far behind. A narrow terminal gets fewer columns.

    Exit code 1: too few nodes can reach each other to decide anything.
    """
    with session.connected(server) as broker:
        described = broker.cluster()
    if as_json:
        output.print_json(described)
    else:
        _show(described, wide=wide)
    if not described.has_quorum:
        raise typer.Exit(EXIT_NO_QUORUM)


@app.command(
    "transfer",
    epilog=examples(
        "holdfast cluster transfer orders --to n2",
        "holdfast cluster transfer orders/3 --to n2",
        "holdfast cluster transfer --control --to n1",
    ),
)
def transfer(
    partition: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[/PARTITION]]",
            help="The partition, such as orders/3; orders is orders/0. Where a topic's name ends in / and a number, "
            "give the partition, too.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[str, typer.Option(metavar="NODE", help="The node that shall lead.", show_default=False)] = ...,  # type: ignore[assignment]
    control: Annotated[
        bool, typer.Option("--control", help="The control group, which decides on topics and cursors.")
    ] = False,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Have another node lead a partition, or the control group. Nothing is lost, and publishers hardly notice."""
    if control is (partition is not None):
        raise typer.BadParameter("name a partition, as in `orders/0`, or --control, and not both")
    topic, number = (None, None) if partition is None else _parsed(partition)
    with session.connected(server) as broker:
        broker.transfer(topic, number, to=to)
    name = "the control group" if topic is None else f"{topic}/{number}"
    if as_json:
        output.print_json({"topic": topic, "partition": number, "leader": to})
    else:
        print(f"{to} leads {name} now")


def _parsed(partition: str) -> tuple[str, int]:
    match = _PARTITION.match(partition)
    if match is None:
        raise typer.BadParameter(f"{partition!r} is no partition; write TOPIC or TOPIC/PARTITION, such as orders/0")
    return match["topic"], int(match["partition"] or 0)


def _show(described: ClusterDescription, *, wide: bool) -> None:
    console = output.console()
    table = _table(described, (*cluster_table.COLUMNS, "version", "protocol", "level"))
    if not wide and _width(console, table) > console.width:
        table = _table(described, _NARROW)
    console.print(table)
    console.print(_verdict(described))
    if (levels := _verdict_on_levels(described)) is not None:
        console.print(levels)


def _width(console: Console, table: Table) -> int:
    """What it would take on a screen without an edge."""
    return console.measure(table, options=console.options.update(width=_WIDE)).maximum


def _table(described: ClusterDescription, columns: tuple[str, ...]) -> Table:
    table = cluster_table.table_of(columns)
    for node in described.nodes:
        state = "up" if node.is_up else "down" if node.silent_since_ms is None else f"down, silent since {_when(node)}"
        shown: dict[str, object] = {name: node.addresses.get(name) for name in ("text", "http", "peer")}
        shown |= {"version": node.version, "protocol": node.protocol, "level": node.level}
        shown |= cluster_table.facts(node)
        cells: dict[str, str | Text] = {name: cell(value) for name, value in shown.items()}
        cells |= {"node": node.node, "state": cluster_table.state_text(state)}
        table.add_row(*(cells[name] for name in columns))
    return table


def _when(node: NodeDescription) -> str:
    return time.strftime("%H:%M:%S" if _is_today(node) else "%Y-%m-%d %H:%M", time.localtime(_silent_s(node)))


def _is_today(node: NodeDescription) -> bool:
    return time.localtime()[:3] == time.localtime(_silent_s(node))[:3]


def _silent_s(node: NodeDescription) -> float:
    return (node.silent_since_ms or 0) / 1000


def _verdict(described: ClusterDescription) -> str:
    """One line: whether it works, what may still happen to it, and what to do."""
    nodes = len(described.nodes)
    missing = ", ".join(described.missing)
    asked = f"as {described.asked} sees it"
    if described.store is not None:
        from rich.markup import escape

        store = escape(described.store)
        if not described.has_quorum:
            return f"[red]The database is away ({store}, {asked}): nothing can be stored.[/red]"
        return f"[green]The database leads every partition ({store}, {asked}); brokers come and go.[/green]"
    if not described.has_quorum:
        who = f"start {missing} again" if missing else "wait for the election, a second or two"
        return f"[red]No majority of {nodes} nodes ({asked}): nothing can be stored. What to do: {who}.[/red]"
    if described.pair is not None:
        return _verdict_on_pair(described.asked, described.pair)
    if nodes == 1:
        return f"One broker, without others ({asked})."
    if described.shrink_after_ms is not None and (verdict := _verdict_on_shrunk(described)):
        return verdict
    may_fail = (nodes - 1) // 2 - len(described.missing)
    spare = f"{may_fail} more may fail" if described.missing else f"{may_fail} of {nodes} may fail"
    if described.missing:
        return (
            f"[yellow]{missing} cannot be reached ({asked}); everything goes on, and {spare}. Start {missing} again, "
            "or have another node take the place of one that will not be back: `holdfast cluster replace`.[/]"
        )
    return f"[green]All {nodes} nodes are there ({asked}); {spare}.[/green]"


def _verdict_on_shrunk(described: ClusterDescription) -> str | None:
    """Of a cluster that goes on without a majority of its nodes, or is about to."""
    without = [node.node for node in described.nodes if not node.is_up and node.node not in described.voters]
    if not without:
        return None
    left, gone = described.voters, ", ".join(without)
    if len(left) == 1:
        return f"[yellow]{left[0]} goes on alone: what it acknowledges is nowhere else. Start {gone} again.[/]"
    return f"[yellow]{gone} cannot be reached and has no vote; {', '.join(left)} go on. Start {gone} again.[/]"


def _verdict_on_levels(described: ClusterDescription) -> str | None:
    """Of an upgrade that is under way: who is still to be upgraded."""
    known = {node.node: node.level for node in described.nodes if node.level is not None}
    if described.level is None or not known or max(known.values()) <= described.level:
        return None
    behind = [node for node, level in known.items() if level <= described.level]
    if not behind:
        return f"Level {described.level}; it is raised by itself in a moment."
    return (
        f"[yellow]Level {described.level}: {', '.join(behind)} cannot do what the others can yet. Upgrade every node; "
        "then the level is raised by itself.[/]"
    )


def _verdict_on_pair(asked: str, pair: PairDescription) -> str:
    if pair.role == "joining":
        return f"[yellow]{asked} gets from {pair.partner} what it missed, and cannot take over yet.[/]"
    if pair.is_alone:
        away = f"gets what it missed from {asked}" if pair.partner_is_up else f"is gone; start {pair.partner} again"
        return f"[yellow]{asked} is the primary and goes on alone: {pair.partner} {away}.[/]"
    primary, backup = (asked, pair.partner) if pair.role == "primary" else (pair.partner, asked)
    return f"[green]{primary} is the primary, {backup} its backup and in step: either may fail.[/green]"

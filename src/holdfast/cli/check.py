"""`holdfast check`: whether a broker takes messages, with an exit code for scripts and a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import SERVER_DEFAULT, JsonLines, Server, examples
from holdfast.cli.quantities import bytes_text, duration_s, duration_text, plural
from holdfast.model.cluster import refusal_of_backup
from holdfast.model.errors import ConnectionLost
from holdfast.model.member_errors import NodeRemoved

if TYPE_CHECKING:
    from holdfast.client.addresses import Address

EXAMPLES = examples(
    "holdfast check",
    "holdfast check --server 10.0.0.5:8090,10.0.0.6:8090 --timeout 2s",
    "holdfast check --json | jq .reason",
)
EXIT_NOT_READY: Final = 1
EXIT_UNREACHABLE: Final = 2
# The broker may be on another machine, and does not say where its directories are.
_WHERE_TO_LOOK: Final = "on its machine, holdfast spill status DIR says more; DIR is its data directory, or its spill"


def check(
    server: Server = SERVER_DEFAULT,
    timeout: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="How long to wait for each answer.")
    ] = "5s",  # type: ignore[assignment]
    as_json: JsonLines = False,
) -> None:
    """Say whether the broker takes messages.

    Exit code 0: ready, or the backup of a plain pair, which follows its primary. 1: it answers but takes no messages,
    and says why. 2: nobody answers.

    Several addresses are looked at one by one, and the worst decides.
    """
    from holdfast.client.addresses import parse_url

    worst = 0
    for address in parse_url(server):
        facts = _facts(address, timeout)
        is_well = facts["ready"] or facts["follows"]
        worst = max(worst, 0 if is_well else EXIT_NOT_READY if facts["reachable"] else EXIT_UNREACHABLE)
        if as_json:
            output.print_json(facts)
        else:
            _show(facts)
    raise typer.Exit(worst)


def _facts(address: Address, timeout_s: float) -> dict[str, Any]:
    """All there is to say about one broker."""
    from holdfast.cli import http

    facts: dict[str, Any] = {"server": str(address), "reachable": False, "ready": False, "follows": False}
    facts["reason"] = None

    def get(path: str) -> http.Answer:
        return http.get(address.host, address.port, path, timeout_s)

    try:
        ready = get("/ready")
        facts["ready"] = ready.status == 200
        facts["reason"] = ready.content["reason"]
        removed = get("/v1/cluster") if not facts["ready"] else None
        if removed is not None and removed.status >= 400 and removed.content["error"]["code"] == NodeRemoved.code:
            return facts | {"reachable": True, "removed": True}
        facts |= get("/v1/info").content
        metrics = get("/metrics").content
        measured = _by_name(metrics)
        facts["spill"] = metrics["file_buffer"] if "holdfast_spill_active" in measured else None
        topics = get("/v1/topics").content["topics"]
        facts["topics"] = len(topics)
        facts["messages"] = sum(topic["messages"] for topic in topics)
        facts["size_bytes"] = sum(topic["size_bytes"] for topic in topics)
        partitions = [each for topic in topics for each in topic["partitions"]]
        facts["damaged_batches"] = sum(each["damaged_batches"] for each in partitions)
        facts["partitions_without_leader"] = sum(each["leader"] is None for each in partitions)
        cluster = get("/v1/cluster").content
        names = ("leader", "term", "has_quorum", "missing", "voters", "shrink_after_ms")
        facts["cluster"] = {name: cluster.get(name) for name in names}
        facts["cluster"]["nodes"] = [each["node"] for each in cluster["nodes"]]
        facts["pair"] = cluster.get("pair")
        facts["store"] = cluster.get("store")
    except ConnectionLost as error:
        facts["reason"] = error.message
        facts["ready"] = False
        return facts
    except (KeyError, TypeError):
        facts["reason"] = f"{address} answers, but not like a broker; give its HTTP address"
        facts["ready"] = False
        return facts
    facts["reachable"] = True
    facts["follows"] = not facts["ready"] and _follows(facts["pair"], facts["reason"])
    facts["cursors"] = int(measured.get("holdfast_cursors", 0))
    facts["subscriptions"] = int(measured.get("holdfast_subscriptions", 0))
    synced = measured.get("holdfast_acknowledges_after_sync")
    facts["acknowledges_after_sync"] = None if synced is None else bool(synced)
    return facts


def _follows(pair: dict[str, Any] | None, reason: str) -> bool:
    """Whether it takes no messages only because it is a backup that hears its primary; a disk may be full, too."""
    return pair is not None and bool(pair["partner_is_up"]) and reason == refusal_of_backup(pair["partner"])


def _by_name(metrics: dict[str, Any]) -> dict[str, float]:
    """Each metric's value, summed up over its labels."""
    return {family["name"]: sum(sample["value"] for sample in family["samples"]) for family in metrics["metrics"]}


def _show(facts: dict[str, Any]) -> None:
    from rich.markup import escape

    console = output.console()
    verdict = "[green]ready[/green]" if facts["ready"] else "[red]not ready[/red]"
    if not facts["reachable"]:
        verdict = "[red]unreachable[/red]"
    elif facts["follows"]:
        verdict = "[green]the backup, and follows its primary[/green]"
    table = output.table("", "", has_markup=True)
    table.show_header = False
    table.add_row("broker", f"[bold]{escape(facts['server'])}[/bold] is {verdict}")
    if facts["follows"]:
        table.add_row("publish to", escape(facts["pair"]["partner"]))
    elif facts["reason"]:
        table.add_row("reason", f"[red]{escape(facts['reason'])}[/red]")
    if facts.get("removed"):
        table.add_row("what to do", "name another node with --server; to have this one back, start it with --join")
    elif facts["reachable"]:
        _add_details(table.add_row, facts)
    else:
        table.add_row("what to do", "start one with `holdfast serve`, or name another with --server")
    console.print(table)


def _spill_in_words(spill: dict[str, Any]) -> str:
    words = [
        "[green]the store takes messages[/green]"
        if spill["db_healthy"]
        else "[red]the store is away[/red]; messages are kept on this broker's disk until it is back"
    ]
    if spill["pending"]:
        words.append(f"[yellow]{plural(spill['pending'], 'message')} wait to be stored[/yellow]")
    if spill["failed"]:
        words.append(f"[red]{plural(spill['failed'], 'message')} could not be stored[/red]: {_WHERE_TO_LOOK}")
    return "; ".join(words)


def _add_details(add_row: Any, facts: dict[str, Any]) -> None:
    from rich.markup import escape

    damaged = facts["damaged_batches"]
    add_row("version", escape(facts["version"]))
    add_row("node", escape(facts["node"]))
    for name, address in sorted(facts["addresses"].items()):
        add_row(escape(name), escape(address))
    if facts["pair"] is not None:
        _add_pair(add_row, facts["pair"])
    elif facts["store"] is not None:
        add_row("store", escape(f"PostgreSQL: {facts['store']}"))
        add_row("brokers", escape(", ".join(facts["cluster"]["nodes"])))
    elif len(facts["cluster"]["nodes"]) > 1:
        _add_cluster(add_row, facts)
    if facts["spill"] is not None:
        add_row("spill", _spill_in_words(facts["spill"]))
    add_row("up for", duration_text(facts["uptime_ms"] / 1000))
    if facts["acknowledges_after_sync"] is not None:
        safely = facts["acknowledges_after_sync"]
        add_row("acknowledges", "after the disk has it" if safely else "[yellow]before the disk has it[/yellow]")
    add_row("topics", f"{facts['topics']:,}")
    add_row("messages", f"{facts['messages']:,} ({bytes_text(facts['size_bytes'])})")
    add_row("cursors", f"{facts['cursors']:,}")
    add_row("subscriptions", f"{facts['subscriptions']:,}")
    add_row("damaged batches", f"[red]{damaged:,}; holdfast doctor says where[/red]" if damaged else "none")


def _add_pair(add_row: Any, pair: dict[str, Any]) -> None:
    from rich.markup import escape

    add_row("pair", f"{pair['role']}, epoch {pair['epoch']}; {plural(pair['failovers'], 'failover')} since it started")
    there = "is there" if pair["partner_is_up"] else "[red]cannot be reached[/red]"
    lag = "" if not pair["lag"] else f", {plural(pair['lag'], 'batch')} behind"
    add_row("partner", f"{escape(pair['partner'])} {there}{lag}")
    if pair["is_alone"]:
        add_row("", "[yellow]alone: what is acknowledged is on this broker only[/yellow]")
    add_row("replicas held", f"{pair['replicas_held']:,} not known to be delivered")


def shrinking_in_words(cluster: dict[str, Any]) -> str:
    after = duration_text(cluster["shrink_after_ms"] / 1000)
    what = (
        f"a node that is silent for {after} loses its vote. Two that only lose contact both go on, and one loses data"
    )
    without = sorted(set(cluster["nodes"]) - set(cluster["voters"]))
    if len(cluster["voters"]) == 1:
        return f"[yellow]{cluster['voters'][0]} goes on alone: what it acknowledges is nowhere else[/yellow]"
    return what if not without else f"{what}; [yellow]no vote: {', '.join(without)}[/yellow]"


def _add_cluster(add_row: Any, facts: dict[str, Any]) -> None:
    cluster = facts["cluster"]
    missing = ", ".join(cluster["missing"])
    add_row("cluster", ", ".join(cluster["nodes"]) + (f"; [red]{missing} cannot be reached[/red]" if missing else ""))
    leader = f"{cluster['leader']}, since term {cluster['term']}" if cluster["leader"] else "[red]none now[/red]"
    add_row("control leader", leader)
    if cluster["shrink_after_ms"] is not None:
        add_row("shrinks", shrinking_in_words(cluster))
    if facts["partitions_without_leader"]:
        add_row("without leader", f"[red]{plural(facts['partitions_without_leader'], 'partition')}[/red]")

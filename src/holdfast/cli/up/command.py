"""The command `holdfast up`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import SERVER_DEFAULT, JsonLines, examples
from holdfast.cli.settings import with_flags
from holdfast.node import config as node_config

if TYPE_CHECKING:
    from holdfast.testing import LocalCluster

EXAMPLES = examples(
    "holdfast up",
    "holdfast up --nodes 5 --data /var/tmp/five --base-port 9000",
    "holdfast up --ready-file ready.json --quiet &",
    "holdfast up --initial-leader n2 --shrink-after-ms 10000",
)
_NODES_DEFAULT: Final = 3
_BASE_PORT_DEFAULT: Final = 8080
_START_S: Final = 60.0
EXIT_NOW: Final = 1


@with_flags(node_config.OF_CLUSTERS)
def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            metavar="N",
            help="How many nodes: 1, 3, 5 or 7. Absent: 3, or as many as there are.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Where each node has its directory, its settings and its log.")
    ] = Path("holdfast-cluster"),
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_505,
            metavar="PORT",
            help="Text ports begin here, HTTP ports ten and peer ports twenty above. Absent: 8080, or as before.",
            show_default=False,
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all nodes as JSON to FILE once they serve and have a leader."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start a node again that has died by itself.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    as_json: JsonLines = False,
    **flags: object,
) -> None:
    """Run a cluster on this machine, each node a process of its own, until SIGTERM or Ctrl-C.

    Shows how it is: who leads, who is behind, who has died. Started again on the same directory it goes on with what is
    stored there, on the same ports. A node that was taken out (`holdfast cluster remove`) stays out.
    """
    if ready_file is not None and not ready_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {ready_file.absolute().parent}", param_hint="'--ready-file'")

    from holdfast.cli.up.supervisor import StopNow, Supervisor
    from holdfast.cli.up.view import View
    from holdfast.testing import LocalCluster
    from holdfast.testing.cluster import first_names, recorded_cluster

    recorded = recorded_cluster(data)
    if recorded is None:
        base_port = base_port or _BASE_PORT_DEFAULT
    nodes = nodes or (_NODES_DEFAULT if recorded is None else len(recorded.names))
    names = first_names(nodes) if recorded is None else recorded.left(data)
    settings = node_config.load_for_cluster(names, os.environ, flags)
    if recorded is None and nodes % 2 == 0:
        output.note(_even(nodes))
    cluster = LocalCluster(nodes, data, base_port, settings)
    view = View(quiet=quiet, as_json=as_json)
    cluster.open(wait=False)
    try:
        supervisor = Supervisor(
            cluster, restart=restart, ready_file=ready_file, start_timeout_s=_START_S, tell=view.tell
        )
        view.rows = supervisor.rows
        view.greet(f"starting {_named(len(cluster.nodes))} in {cluster.data}")
        with view.shown():
            supervisor.run(on_ready=lambda: view.greet(_greeting(cluster)), on_tick=view.changed)
    except StopNow:
        raise typer.Exit(EXIT_NOW) from None
    finally:
        cluster.close()


def _greeting(cluster: LocalCluster) -> str:
    first = cluster.nodes[0].http
    all_of_them = ",".join(cluster.http_addresses)
    server = "" if first == SERVER_DEFAULT else f" --server {first}"
    return (
        f"{_named(len(cluster.nodes))} serve from {cluster.data}; each takes everything\n"
        f"  {cluster.url}\n"
        f'Try:  holdfast publish greetings "Hello"{server}\n'
        f"      holdfast subscribe greetings --from earliest --server {all_of_them}\n"
        f"      holdfast cluster status{server}\n"
        "Ctrl-C stops them."
    )


def _named(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _even(nodes: int) -> str:
    may_fail = (nodes - 1) // 2
    as_good = nodes - 1
    lost = "no node may fail" if may_fail == 0 else f"{may_fail} of them may fail"
    return (
        f"holdfast: {nodes} nodes gain nothing over {as_good}: a majority of {nodes} is {nodes // 2 + 1}, so {lost}, "
        f"as with {as_good}, and every message is stored once more. Take {as_good} or {nodes + 1}."
    )

"""`holdfast subscriptions`: who the cluster delivers to by connecting there, and how that goes."""

from __future__ import annotations

import ipaddress
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output, session
from holdfast.cli.options import SERVER_DEFAULT, CursorName, Json, JsonLines, Server, Topic, Yes, examples
from holdfast.cli.topics import confirm

if TYPE_CHECKING:
    from holdfast.client import BlockingClient
    from holdfast.model.callbacks import CallbackDescription

_LOOK_S: Final = 2.0
_POLL_S: Final = 0.1

app = typer.Typer(help="List and remove callbacks: receivers that the cluster connects to.", no_args_is_help=True)


def subscribe_callback(
    topic: str, callback: str, name: str | None, start: str, server: str, *, is_numbered: bool, as_json: bool
) -> None:
    """What `holdfast subscribe --callback` does."""
    with session.connected(server) as broker:
        made = broker.subscribe_callback(
            topic,
            callback,
            name=name,
            start=int(start) if start.isdigit() else start,
            format="numbered" if is_numbered else "plain",
        )
        # Where a name leads to is found out by the node that delivers, and it may be nowhere that is allowed.
        refused = None if _is_literal(made.callback) else _refusal(broker, made)
    if refused is not None:
        output.note(f"holdfast: nothing is delivered to {made.callback} for now: {refused}")
    if as_json:
        output.print_json(made)
    else:
        print(f"{made.topic} is delivered to {made.callback} as {made.name}")


def _is_literal(callback: str) -> bool:
    host = callback.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refusal(broker: BlockingClient, made: CallbackDescription) -> str | None:
    """Why its address is not connected to, if that is told within a moment."""
    deadline = time.monotonic() + _LOOK_S
    while True:
        found = next((each for each in broker.subscriptions(made.topic) if each.name == made.name), None)
        if found is None or found.state != "waiting" or found.error is not None or time.monotonic() > deadline:
            return found.error if found is not None and found.state == "refused" else None
        time.sleep(_POLL_S)


@app.command("list", epilog=examples("holdfast subscriptions list", "holdfast subscriptions list orders --json"))
def list_subscriptions(
    topic: Annotated[str | None, typer.Argument(help="Only subscriptions to this topic.")] = None,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLines = False,
) -> None:
    """List callbacks, whether each is connected, and how far it is behind."""
    with session.connected(server) as broker:
        found = broker.subscriptions(topic)
        if topic is not None and not found:
            broker.describe(topic)  # one that is not there is mistyped
    if as_json:
        for each in found:
            output.print_json(each)
        return
    table = output.table(
        "topic", "name", "callback", "state", "behind", "lost", "last error", numbers=("behind", "lost")
    )
    for each in found:
        table.add_row(
            each.topic,
            each.name,
            each.callback,
            each.state,
            f"{each.behind:,}",
            f"{each.lost:,}",
            "-" if each.error is None or each.state == "connected" else each.error,
        )
    output.console().print(table)


@app.command("remove", epilog=examples("holdfast subscriptions remove orders billing --yes"))
def remove(
    topic: Topic, name: CursorName, yes: Yes = False, server: Server = SERVER_DEFAULT, as_json: Json = False
) -> None:
    """Deliver to a callback no more; its place is forgotten."""
    with session.connected(server) as broker:
        confirm(f"Stop to deliver {topic} to {name}, and forget where it stands?", yes=yes)
        broker.remove_subscription(topic, name)
    if as_json:
        output.print_json({"removed": name, "topic": topic})
    else:
        print(f"removed {name} from {topic}")

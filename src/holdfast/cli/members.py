"""`holdfast cluster members`, `add`, `drain`, `remove`, `replace`: nodes come and go, and one sees how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output, session, topics
from holdfast.cli.cluster_table import cell
from holdfast.cli.options import SERVER_DEFAULT, Json, Server, Yes, examples
from holdfast.model.errors import RemoteError
from holdfast.model.member_errors import NodeRemoved

if TYPE_CHECKING:
    from holdfast.client import BlockingClient
    from holdfast.model.cluster import MemberDescription, MembersDescription

EXIT_NOT_YET: Final = 1
_POLL_S: Final = 0.2
_COLOURS: Final = {"voter": "green", "silent": "red", "removed": "dim"}

Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name, such as n4.", show_default=False)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when it is decided, not when it is done.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait; it goes on after that.")
]


def register(app: typer.Typer) -> None:
    """The commands about members belong to `holdfast cluster`."""
    app.command("members", epilog=examples("holdfast cluster members", "holdfast cluster members --json | jq ."))(
        members
    )
    app.command(
        "add",
        epilog=examples(
            "holdfast serve --node n4 --data n4 --peer 10.0.0.8:7000 --join 10.0.0.5:7000   # on the new machine",
            "holdfast cluster add n4",
        ),
    )(add)
    app.command(
        "drain",
        epilog=examples("holdfast cluster drain n2", "holdfast cluster drain n2 --undo", "holdfast cluster members"),
    )(drain)
    app.command(
        "remove",
        epilog=examples(
            "holdfast cluster remove n2", "holdfast cluster remove n2 --no-wait", "holdfast cluster remove n2 --undo"
        ),
    )(remove)
    app.command("replace", epilog=examples("holdfast cluster replace n3 n4"))(replace)


def members(server: Server = SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show who belongs to the cluster: who votes, learns, is silent, is coming or going, and how far that is."""
    with session.connected(server) as broker:
        described = broker.members()
    if as_json:
        output.print_json(described)
    else:
        _show(described)


def add(node: Node, timeout: Timeout = 600.0, server: Server = SERVER_DEFAULT, as_json: Json = False) -> None:
    """Wait until a node that was started with --join votes everywhere. Exit code 1: not within the time."""
    with session.connected(server) as broker:
        _say_how_to_start(broker.members(), node)
        described = _watch(broker, f"{node} joins", node, _joined, timeout)
    _tell(described, node, _joined, f"{node} votes in every group", as_json=as_json)


def drain(
    node: Node,
    undo: Annotated[bool, typer.Option("--undo", help="Let it lead again.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 60.0,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Have a node lead nothing, and be given nothing to lead. It goes on voting and serving."""
    with session.connected(server) as broker:
        described = broker.drain_member(node, undo=undo)
        if not (no_wait or undo):
            described = _watch(broker, f"{node} hands over", node, _leads_nothing, timeout)
    done = f"{node} may lead again" if undo else _begun(f"{node} hands over") if no_wait else f"{node} leads nothing"
    _tell(described, node, (lambda *_: (1, 1)) if undo or no_wait else _leads_nothing, done, as_json=as_json)


def remove(
    node: Node,
    yes: Yes = False,
    undo: Annotated[bool, typer.Option("--undo", help="Have it stay, where it has not left yet.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Take a node out: it hands over what it leads, then leaves all groups. Exit code 1: not within the time.

    Refused where the others would be no majority that is up and has everything, and while another node comes or goes.
    Asks first where none of those that stay may fail.
    """
    with session.connected(server) as broker:
        if not undo:
            _ask_before_leaving(broker.members(), node, yes=yes)
        described = broker.remove_member(node, undo=undo)
        if undo and not no_wait:
            described = _watch(broker, f"{node} stays", node, _joined, timeout)
        elif not no_wait:
            try:
                described = _watch(broker, f"{node} leaves", node, _left, timeout)
            except RemoteError as error:
                if error.code != NodeRemoved.code:
                    raise
                # The only one that can be asked is the node itself, and it knows.
                described = _without(described, node)
    what = f"{node} stays" if undo else f"{node} has left; {_may_fail(_staying(described, node))}"
    is_done = _joined if undo else _left
    done = _begun(f"{node} {'stays' if undo else 'leaves'}") if no_wait else what
    _tell(described, node, is_done if not no_wait else lambda *_: (1, 1), done, as_json=as_json)


def replace(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The node that shall leave.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="One that has joined or is joining.", show_default=False)],
    yes: Yes = False,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Put a node in the place of another one, such as one that is silent for good. Exit code 1: not within the time.

    Waits for a node that was just started with --join. Asks first where the new one votes already, so that nobody comes
    for the old one, and none of those that stay may fail.
    """
    deadline = time.monotonic() + timeout
    with session.connected(server) as broker:
        before = broker.members()
        _say_how_to_start(before, new)
        if not no_wait and _is_unknown(before, new):
            before = _watch(broker, f"{new} asks to join", new, _asked, timeout)
            if _is_unknown(before, new):
                _tell(before, new, _asked, "", as_json=as_json)
        known = _found(before, new)
        if known is not None and known.votes_in and not known.is_joining:
            _ask_before_leaving(before, old, yes=yes)
        described = broker.replace_member(old, new)
        if not no_wait:
            _watch(broker, f"{new} joins", new, _joined, deadline - time.monotonic())
            described = _watch(broker, f"{old} leaves", old, _left, deadline - time.monotonic())
    done = f"{new} has taken the place of {old}; {_may_fail(_staying(described, old))}"
    if no_wait:
        done = _begun(f"{old} leaves as soon as {new} votes everywhere")
    _tell(described, old, _left if not no_wait else lambda *_: (1, 1), done, as_json=as_json)


# --- before and after -------------------------------------------------------------------------------


def _staying(described: MembersDescription, leaver: str) -> int:
    """How many nodes vote, or will, without this one."""
    left = [member for member in described.members if not (member.state == "removed" or member.is_leaving)]
    return sum(member.node != leaver for member in left)


def _may_fail(voters: int) -> str:
    may_fail = (voters - 1) // 2
    if voters == 1:
        return "1 node is left, and holds everything alone"
    return f"{voters} nodes vote now, and {may_fail or 'none'} of them may fail"


def _ask_before_leaving(described: MembersDescription, node: str, *, yes: bool) -> None:
    """Where the rest could not lose a node. A node that is not there, or the last one, is refused anyway."""
    staying = _staying(described, node)
    if _is_unknown(described, node) or not 1 <= staying <= 2:
        return
    rest = "1 node, which holds everything alone" if staying == 1 else "2 voting nodes, of which none may fail"
    topics.confirm(f"Without {node} the cluster has {rest}. Take {node} out?", yes=yes, otherwise="nothing was changed")


def _is_unknown(described: MembersDescription, node: str) -> bool:
    found = _found(described, node)
    return found is None or found.state == "removed"


def _say_how_to_start(described: MembersDescription, node: str) -> None:
    if _is_unknown(described, node):
        peer = next((member.address for member in described.members if member.is_up and member.address), "HOST:PORT")
        output.note(
            f"holdfast: no node {node} has asked to join yet; start it with `holdfast serve --node {node} --data DIR "
            f"--peer HOST:PORT --join {peer}`"
        )


def _begun(what: str) -> str:
    return f"{what}; see `holdfast cluster members`"


# --- how far it is ----------------------------------------------------------------------------------

# What is done and what there is to do, of a node that may not be listed (yet, or any more).
HowFar = Callable[["MemberDescription | None"], tuple[int, int]]


def _joined(member: MemberDescription | None) -> tuple[int, int]:
    if member is None or member.state == "removed":
        return 0, 1
    if member.is_joining:
        return min(member.votes_in, member.groups - 1), member.groups
    return 1, 1


def _asked(member: MemberDescription | None) -> tuple[int, int]:
    return int(member is not None and member.state != "removed"), 1


def _left(member: MemberDescription | None) -> tuple[int, int]:
    if member is None or member.state == "removed":
        return 1, 1
    return member.groups - member.votes_in, member.groups + 1


def _leads_nothing(member: MemberDescription | None) -> tuple[int, int]:
    if member is None or not member.is_up:
        return 1, 1
    led = (member.partitions_led or 0) + member.is_control_leader
    return max(0, member.groups - led), member.groups


def _without(described: MembersDescription, node: str) -> MembersDescription:
    import msgspec

    others = [member for member in described.members if member.node != node]
    return msgspec.structs.replace(described, members=others, changing=None)


def _found(described: MembersDescription, node: str) -> MemberDescription | None:
    return next((member for member in described.members if member.node == node), None)


def _watch(broker: BlockingClient, what: str, node: str, how_far: HowFar, timeout_s: float) -> MembersDescription:
    """Look until it is done or the time is over."""
    deadline = time.monotonic() + timeout_s
    with output.bar() as progress:
        task = progress.add_task(what, total=None)
        while True:
            described = broker.members()
            done, total = how_far(_found(described, node))
            progress.update(task, completed=done, total=total)
            if done >= total or time.monotonic() >= deadline:
                return described
            time.sleep(_POLL_S)


def _tell(described: MembersDescription, node: str, how_far: HowFar, done: str, *, as_json: bool) -> None:
    reached, total = how_far(_found(described, node))
    if as_json:
        output.print_json(described)
    elif reached >= total:
        print(done)
    else:
        member = _found(described, node)
        if member is None or member.state == "removed":
            output.note(f"holdfast: no node {node} has asked to join within the time; nothing was changed")
        else:
            output.note(f"holdfast: not yet: {node} is {member.state}; it goes on, see `holdfast cluster members`")
    if reached < total:
        raise typer.Exit(EXIT_NOT_YET)


# --- a table ----------------------------------------------------------------------------------------


def _show(described: MembersDescription) -> None:
    table = output.table("node", "state", "silent for", "votes in", "leads", "lag", "peer", numbers=("leads", "lag"))
    for member in described.members:
        state = output.coloured(member.state, _COLOURS.get(member.state, "yellow"))
        if member.replaces:
            state.append(f", takes the place of {member.replaces}")
        table.add_row(
            member.node,
            state,
            _silence(member.silent_since_ms),
            cell(None) if member.state == "removed" else f"{member.votes_in} of {member.groups}",
            cell(member.partitions_led),
            cell(member.lag),
            cell(member.address),
        )
    console = output.console()
    console.print(table)
    if described.changing is not None:
        console.print(f"{described.changing} is coming or going; one node at a time does.")


def _silence(since_ms: int | None) -> str:
    if since_ms is None:
        return "-"
    seconds = max(0, int(time.time() - since_ms / 1000))
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"

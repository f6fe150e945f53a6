"""`holdfast primary` and `holdfast backup`: two brokers, of which either carries on when the other is gone."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.cli import settings
from holdfast.cli.options import examples
from holdfast.cli.settings import ConfigFile
from holdfast.model.errors import ConfigError, NameTaken
from holdfast.node.config import parse_address

PRIMARY_EXAMPLES = examples(
    "holdfast primary 8080 localhost:8081",
    "holdfast primary 8080 edge-2:8080 --data /var/lib/holdfast --require-backup",
    "holdfast primary 8080 localhost:8081 --memory --compute-ms 50:150",
    "holdfast primary 8080 edge-2:8080 --plain",
    "holdfast primary 8080",
)
BACKUP_EXAMPLES = examples(
    "holdfast backup 8081 localhost:8080",
    "holdfast backup 8081 localhost:8080 --heartbeat-ms 200 --misses 3",
    "holdfast backup run 8081 localhost:8080 --plain",
)

# From the text port to the others of the same broker: a pair is given with its text ports only.
_HTTP_STEP: Final = 10
_PEER_STEP: Final = 20
_NODES: Final = {"primary": ("a", "b"), "backup": ("b", "a")}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

Port = Annotated[int, typer.Argument(min=1, max=65_535 - _PEER_STEP, help="The port of the text protocol.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The data directory.  [default: holdfast-PORT]", show_default=False),
]
Host = Annotated[
    str | None,
    typer.Option(help="The address to listen on.  [default: loopback if the partner is there, else 0.0.0.0]"),
]
Memory = Annotated[
    bool,
    typer.Option("--memory", help="Keep nothing: acknowledge what both have in memory, on temporary files."),
]
HeartbeatMs = Annotated[
    int | None, typer.Option(min=100, show_default="1000", help="How often the other one is expected to be heard.")
]
Misses = Annotated[
    int | None,
    typer.Option(min=1, show_default="3", help="After this many missed heartbeats the other one counts as gone."),
]
RequireBackup = Annotated[
    bool, typer.Option("--require-backup", help="Refuse to publish rather than store a message on one broker only.")
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain", help="Speak REPLICATE and MARK_DELIVERED with the other one, which may be a broker of any make."
    ),
]
ComputeMs = Annotated[
    str | None, typer.Option(metavar="MIN:MAX", help="Milliseconds of pseudo computing for each message.")
]
Dialect = Annotated[str, typer.Option(help="standard or ack: see docs/text.md.")]
ReadyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the addresses as JSON to FILE once the broker serves.")
]


def primary(
    port: Port,
    backup: Annotated[str | None, typer.Argument(metavar="[BACKUP]", help="HOST:PORT of the backup.")] = None,
    data: Data = None,
    host: Host = None,
    memory: Memory = False,
    heartbeat_ms: HeartbeatMs = None,
    misses: Misses = None,
    require_backup: RequireBackup = False,
    plain: Plain = False,
    compute_ms: ComputeMs = None,
    text_dialect: Dialect = "standard",
    config: ConfigFile = None,
    ready_file: ReadyFile = None,
) -> None:
    """Run the primary of a pair; without BACKUP, or with "", one broker without replication.

    Its HTTP interface is on PORT + 10, and the backup reaches it on PORT + 20. If the backup has taken over meanwhile,
    it becomes the backup.
    """
    flags = _flags(heartbeat_ms, misses, compute_ms, text_dialect, require_backup=require_backup)
    _serve("primary", port, backup or None, data, host, config, ready_file, flags, memory=memory, plain=plain)


def backup(
    port: Port,
    primary: Annotated[str, typer.Argument(metavar="PRIMARY", help="HOST:PORT of the primary.")],
    data: Data = None,
    host: Host = None,
    memory: Memory = False,
    heartbeat_ms: HeartbeatMs = None,
    misses: Misses = None,
    require_backup: RequireBackup = False,
    plain: Plain = False,
    compute_ms: ComputeMs = None,
    text_dialect: Dialect = "standard",
    config: ConfigFile = None,
    ready_file: ReadyFile = None,
) -> None:
    """Run the backup of a pair: it has what the primary has, and carries on when that one is gone."""
    if not primary:
        raise typer.BadParameter("a backup has a primary; give its HOST:PORT", param_hint="'PRIMARY'")
    flags = _flags(heartbeat_ms, misses, compute_ms, text_dialect, require_backup=require_backup)
    _serve("backup", port, primary, data, host, config, ready_file, flags, memory=memory, plain=plain)


def _flags(
    heartbeat_ms: int | None, misses: int | None, compute_ms: str | None, text_dialect: str, *, require_backup: bool
) -> dict[str, object]:
    return {
        "heartbeat_ms": heartbeat_ms,
        "misses": misses,
        "require_backup": require_backup or None,
        "compute_ms": compute_ms,
        "text_dialect": text_dialect,
    }


def _serve(
    role: str,
    port: int,
    partner: str | None,
    data: Path | None,
    host: str | None,
    config: Path | None,
    ready_file: Path | None,
    flags: dict[str, object],
    *,
    memory: bool,
    plain: bool,
) -> None:
    if memory and data is not None:
        raise ConfigError("with --memory nothing is kept, so there is no use for --data; give one of them")
    if plain and partner is None:
        raise typer.BadParameter("with --plain there are two brokers: say where the backup is", param_hint="'--plain'")
    temporary = tempfile.mkdtemp(prefix="holdfast-") if memory else None
    where = temporary or str(data or f"holdfast-{port}")
    try:
        flags |= _durability(where, memory=memory)

        def run() -> int:
            names = _names(role, Path(where))
            checked = settings.load(config, flags | _addresses(role, names, port, partner, host, plain=plain))
            from holdfast.node import logs, process

            logs.configure(checked.log_level, checked.log_format)
            return process.run(checked, ready_file, quiet="HOLDFAST_QUIET" in os.environ)

        try:
            code = run()
        except NameTaken:
            # Once: from now on the directory says which of the two names this one has.
            code = run()
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    raise typer.Exit(code)


def _names(role: str, directory: Path) -> tuple[str, str]:
    """The name of this broker and that of the other one: a directory keeps the name it began with."""
    from holdfast.storage.directory import read_identity

    identity = read_identity(directory)
    for names in _NODES.values():
        if identity is not None and identity.node == names[0]:
            return names
    return _NODES[role]


def _addresses(
    role: str, names: tuple[str, str], port: int, partner: str | None, host: str | None, *, plain: bool
) -> dict[str, object]:
    """The settings that the two addresses stand for."""
    partner_host, partner_port = parse_address("the other broker", partner) if partner is not None else ("localhost", 0)
    if partner is not None and not plain and partner_port > 65_535 - _PEER_STEP:
        raise ConfigError(f"the port of {partner} is too high: its peers are reached {_PEER_STEP} above it")
    if partner is not None and partner_port == port and partner_host in (*_LOOPBACK, host):
        raise ConfigError(f"{partner} is this broker itself; give the address of the other one")
    listen = host or ("127.0.0.1" if partner_host in _LOOPBACK else "0.0.0.0")
    node, other = names
    addresses: dict[str, object] = {
        "node": node,
        "text": _joined(listen, port),
        "http": _joined(listen, port + _HTTP_STEP),
    }
    if partner is not None:
        addresses["pair"] = role
    if plain:
        addresses["plain_partner"] = _joined("127.0.0.1" if partner_host == "localhost" else partner_host, partner_port)
    elif partner is not None:
        addresses["peer"] = _joined(listen, port + _PEER_STEP)
        there = _joined("127.0.0.1" if partner_host == "localhost" else partner_host, partner_port + _PEER_STEP)
        addresses["peers"] = [f"{node}={addresses['peer']}", f"{other}={there}"]
    return addresses


def _durability(where: str, *, memory: bool) -> dict[str, object]:
    return {"data": where, "sync": "none" if memory else None}


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

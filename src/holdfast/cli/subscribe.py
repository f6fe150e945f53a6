"""`holdfast subscribe`: a topic's messages on standard output, live or as a reader with a name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.cli import output, recording, session
from holdfast.cli.cursors import place
from holdfast.cli.options import SERVER_DEFAULT, JsonLines, Server, Topic, examples
from holdfast.cli.pair_options import Addresses, checked_addresses
from holdfast.cli.quantities import duration_s, duration_text, plural
from holdfast.cli.subscriptions import subscribe_callback

EXAMPLES = examples(
    "holdfast subscribe orders",
    "holdfast subscribe orders --from earliest --count 10 --json",
    "holdfast subscribe orders --as billing",
    "holdfast subscribe logs --from -10m | grep ERROR",
    "holdfast subscribe orders --count 1 --timeout 5s || echo nothing came",
    "holdfast subscribe topicC localhost:8080 localhost:8081",
    "holdfast subscribe orders --callback 127.0.0.1:9000 --name billing",
    "holdfast subscribe orders --as billing --record received.ndjson",
)
EXIT_TOO_FEW: Final = 1
# What a shell reports for a program that a closed pipe ended, and for one that was told to end.
EXIT_PIPE_CLOSED: Final = 141
EXIT_TERMINATED: Final = 143


def subscribe(
    context: typer.Context,
    topic: Topic,
    address: Addresses = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            parser=place,
            metavar="earliest|latest|OFFSET|-10m",
            help="Where to begin: a place, an offset, or how long ago. A name that is known goes on where it stands.",
        ),
    ] = "latest",
    name: Annotated[
        str | None,
        typer.Option(
            "--as", "--name", metavar="NAME", help="Read under a name: the broker keeps the place between runs."
        ),
    ] = None,
    callback: Annotated[
        str | None,
        typer.Option(
            "--callback",
            metavar="HOST:PORT",
            help="Have the cluster deliver to this address from now on, and leave; `holdfast receive` listens there.",
        ),
    ] = None,
    is_numbered: Annotated[
        bool,
        typer.Option("--numbered", help="With --callback: each line says where it stands, so that none is seen twice."),
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Leave after so many messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(parser=duration_s, metavar="DURATION", help="Leave when no message has come for this long."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(dir_okay=False, metavar="FILE", help="Append what was received, a line each.")
    ] = None,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLines = False,
) -> None:
    """Print a topic's messages, a line each, bytes unchanged.

    With addresses, one of a plain broker or two of a pair, a line also says the broker that the message came from.

    With `--as NAME` each message is acknowledged once it is printed. A broker that is away is waited for.

    With `--callback HOST:PORT` nothing is printed: the cluster connects to that address and delivers there, also after
    this command has ended. `holdfast subscriptions` lists and removes what was made this way.

    Exit code 1: fewer than `--count` messages came within `--timeout`.
    """
    if callback is not None:
        if address or count is not None or timeout is not None:
            raise typer.BadParameter("--callback goes with --name, --from and --numbered only")
        subscribe_callback(topic, callback, name, start, server, is_numbered=is_numbered, as_json=as_json)
        return
    if is_numbered:
        raise typer.BadParameter("--numbered goes with --callback")
    addresses = checked_addresses(context, address) if address else []
    if addresses and start != "latest":
        raise typer.BadParameter("addresses are read from now on, or under a name: --from needs --server")
    if addresses:
        session.require_text_broker(addresses)
    else:
        session.require_broker(server)
        session.show_client_warnings()

    import asyncio

    from holdfast.cli.pair_reading import PairReader
    from holdfast.cli.reading import Reader

    kind = PairReader if addresses else Reader
    try:
        with recording.received(record) as records:
            reader = kind(topic, name, count=count, timeout_s=timeout, as_json=as_json, records=records)
            if isinstance(reader, PairReader):
                asyncio.run(reader.run(addresses))
            else:
                asyncio.run(reader.run(server, int(start) if start.isdigit() else start))
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_PIPE_CLOSED) from None
    if reader.terminated:
        raise typer.Exit(EXIT_TERMINATED)
    if count is not None and reader.printed < count:
        came = plural(reader.printed, "message")
        output.note(f"holdfast: {came} of {count:,} came, then none for {duration_text(timeout or 0)}")
        raise typer.Exit(EXIT_TOO_FEW)

"""All commands, put together, and how an error ends one: a sentence on standard error and a code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer
from typer.main import get_command

from holdfast.cli import (
    backup,
    check,
    cluster,
    config,
    cursors,
    doctor,
    output,
    pair,
    proxy,
    publish,
    receive,
    serve,
    spill,
    subscribe,
    subscriptions,
    topics,
    transactions,
)
from holdfast.cli.bench import commands as bench
from holdfast.cli.demo import commands as demo
from holdfast.cli.pipeline import commands as pipeline
from holdfast.cli.up import command as up
from holdfast.model.errors import HoldfastError

EXIT_ERROR = 1

app = typer.Typer(
    name="holdfast",
    help="Holdfast: a message broker that keeps every acknowledged message.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("up", epilog=up.EXAMPLES)(up.up)
app.command("primary", epilog=pair.PRIMARY_EXAMPLES)(pair.primary)
app.add_typer(backup.app, name="backup")
app.command("proxy", epilog=proxy.EXAMPLES)(proxy.proxy)
app.command("publish", epilog=publish.EXAMPLES)(publish.publish)
app.command("subscribe", epilog=subscribe.EXAMPLES)(subscribe.subscribe)
app.command("receive", epilog=receive.EXAMPLES)(receive.receive)
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(topics.app, name="topics")
app.add_typer(cursors.app, name="cursors")
app.add_typer(transactions.app, name="transactions")
app.add_typer(cluster.app, name="cluster")
app.command("check", epilog=check.EXAMPLES)(check.check)
app.add_typer(bench.app, name="bench")
app.add_typer(demo.app, name="demo")
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(spill.app, name="spill")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Holdfast: a message broker that keeps every acknowledged message."""


@cache
def command() -> Callable[[], object]:
    """All commands, put together once in a process: that takes longer than most of them."""
    return get_command(app)


def main() -> None:
    """Run a command; what goes wrong on purpose is one line, not a traceback."""
    try:
        command()()
    except HoldfastError as error:
        output.note(f"holdfast: {error.message} [{error.code}]")
        sys.exit(EXIT_ERROR)
    except OSError as error:
        # The world's fault: a full disk, a missing permission. Which file and why is what helps.
        where = f"{error.filename}: " if error.filename else ""
        output.note(f"holdfast: {where}{error.strerror or error}")
        sys.exit(EXIT_ERROR)

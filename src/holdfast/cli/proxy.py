"""`holdfast proxy`: one address in front of several clusters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import session
from holdfast.cli.options import examples

EXAMPLES = examples(
    "holdfast proxy --groups a=127.0.0.1:8090",
    "holdfast proxy --listen 0.0.0.0:8000 --groups a=n1:8090,n2:8090,n3:8090 --groups b=m1:8090,m2:8090,m3:8090",
)
_LISTEN_DEFAULT = "127.0.0.1:8000"


def proxy(
    groups: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=HOST:PORT,…", help="A cluster: a name that never changes, and its HTTP ports. Once for each."
        ),
    ],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect.")] = _LISTEN_DEFAULT,
    patience_ms: Annotated[
        int, typer.Option(min=100, max=60_000, metavar="MS", help="How long a call is tried before it is given up.")
    ] = 8000,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the address as JSON to FILE once it listens.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")] = False,
) -> None:
    """Run a proxy in front of one or more clusters until SIGTERM or Ctrl-C.

    Queues and topics are spread over the clusters. The proxy keeps nothing: as many as you like may run side by side.
    """
    from holdfast.client.addresses import Address
    from holdfast.model.errors import ConfigError
    from holdfast.node import logs
    from holdfast.node.config import parse_address
    from holdfast.proxy import Settings, run
    from holdfast.proxy.settings import parse_groups

    if ready_file is not None and not ready_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {ready_file.absolute().parent}", param_hint="'--ready-file'")
    try:
        settings = Settings(
            listen=Address(*parse_address("listen", listen)), groups=parse_groups(groups), patience_s=patience_ms / 1000
        )
    except ConfigError as error:
        raise typer.BadParameter(error.message) from None
    logs.configure("warning" if quiet else "info", "text")
    try:
        code = run(settings, ready_file, quiet=quiet or "HOLDFAST_QUIET" in os.environ)
    except OSError as error:
        if error.filename != str(settings.listen):
            raise
        raise session.cannot_listen(listen, error, "with --listen") from error
    raise typer.Exit(code)

"""Addresses of brokers as arguments: one plain broker or a pair, over the text protocol."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from holdfast.model.errors import ConfigError

ADDRESSES_MAX: Final = 2

Addresses = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ADDRESS",
        help="Text addresses, HOST:PORT: one of a plain broker, or two of a pair. Instead of --server.",
        show_default=False,
    ),
]


def is_address(text: str) -> bool:
    """Whether it could be meant as `HOST:PORT`."""
    from holdfast.client.addresses import parse_text_address

    try:
        parse_text_address(text)
    except ConfigError:
        return False
    return True


def checked_addresses(context: typer.Context, addresses: list[str]) -> list[str]:
    """The addresses that are not empty, or a sentence that says what to write instead.

    An empty one stands for a broker that there is not: `"localhost:8080" ""` is one plain broker.
    """
    addresses = [address for address in addresses if address]
    if not addresses:
        raise typer.BadParameter("the address is empty; write HOST:PORT of a text port, such as localhost:8080")
    # What stands in HOLDFAST_SERVER is for commands that say nothing else.
    source = context.get_parameter_source("server")
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(
            "give either addresses, for the text protocol, or --server, for HTTP; not both", param_hint="'--server'"
        )
    if len(addresses) > ADDRESSES_MAX:
        raise typer.BadParameter(
            f"{len(addresses)} addresses are too many; give one of a plain broker or two of a pair. "
            "The nodes of a cluster go into --server HOST:PORT,HOST:PORT,HOST:PORT"
        )
    for address in addresses:
        if not is_address(address):
            raise typer.BadParameter(
                f"{address!r} is no address; write HOST:PORT of a text port, such as localhost:8080. "
                "A message of several words needs quotes"
            )
    if len(set(addresses)) < len(addresses):
        raise typer.BadParameter("both addresses are the same; give that of the primary and that of the backup")
    return addresses

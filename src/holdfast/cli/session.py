"""Reaching a broker from a command: a quick, plain answer if there is none, patience once there was one."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import ConfigError, ConnectionLost

if TYPE_CHECKING:
    from holdfast.client import BlockingClient
    from holdfast.client.addresses import Address

# A person waits for this; a broker on another continent answers within it.
_PROBE_TIMEOUT_S: Final = 3.0


class NoBroker(ConnectionLost):
    """Nobody listens at any of the addresses."""


def require_broker(server: str) -> None:
    """Raise `NoBroker` unless somebody listens at one of the addresses.

    The client itself keeps trying for half a minute, which is right for a broker that restarts and
    wrong for one that was never there.
    """
    from holdfast.client.addresses import parse_url

    problems = _problems(parse_url(server))
    if problems:
        raise NoBroker(
            f"no broker answers at {', '.join(problems)}; start one with `holdfast serve`, or name another with "
            "--server"
        )


def require_text_broker(addresses: list[str]) -> None:
    """The same for the text addresses of a plain broker or a pair."""
    from holdfast.client.addresses import parse_text_address

    problems = _problems([parse_text_address(address) for address in addresses])
    if problems:
        raise NoBroker(
            f"no broker answers at {', '.join(problems)}; start {_how_to_start(addresses)}, or give the text address "
            "of one that runs"
        )


def cannot_listen(address: str, error: OSError, option: str) -> ConfigError:
    """What to say where a command cannot listen; `option` is how another address is given."""
    reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ConfigError(f"cannot listen on {address}: {reason}; end what listens there, or give another {option}")


def _how_to_start(addresses: list[str]) -> str:
    if len(addresses) == 1:
        return "one with `holdfast serve`"
    return "a pair with `holdfast primary PORT BACKUP` and `holdfast backup PORT PRIMARY`"


def _problems(addresses: Sequence[Address]) -> list[str]:
    """What is wrong with each of the addresses; nothing, if somebody listens at one of them."""
    problems = []
    for address in addresses:
        try:
            socket.create_connection(address, timeout=_PROBE_TIMEOUT_S).close()
        except OSError as error:
            problems.append(f"{address} ({error.strerror or error})")
        else:
            return []
    return problems


@contextlib.contextmanager
def connected(server: str) -> Iterator[BlockingClient]:
    """A client without `await`, closed at the end."""
    require_broker(server)
    show_client_warnings()

    from holdfast.client import connect_blocking

    with connect_blocking(server) as broker:
        yield broker


def show_client_warnings() -> None:
    """A broker that goes or comes back is told on standard error, one line each."""
    log = logging.getLogger("holdfast.client")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("holdfast: %(message)s"))
        log.addHandler(handler)
        log.propagate = False

"""Where brokers are, which of them to try next, and telling a person when one goes or comes back."""

from __future__ import annotations

import logging
import time
from typing import Final, NamedTuple

from holdfast.model.errors import ConfigError

PORT_DEFAULT: Final = 8090
TEXT_PORT_EXAMPLE: Final = 8080

_SCHEMES = ("holdfast://", "http://")
_log = logging.getLogger("holdfast.client")


class Address(NamedTuple):
    """One broker's HTTP port, or its text port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> list[Address]:
    """`holdfast://host:port,host:port` as addresses; the scheme and the port may be left out."""
    rest = url.strip()
    for scheme in _SCHEMES:
        if rest.lower().startswith(scheme):
            rest = rest[len(scheme) :]
            break
    else:
        if "://" in rest:
            raise ConfigError(f"{url!r} does not begin with holdfast://; give holdfast://host:{PORT_DEFAULT}")
    addresses = [_parse_address(part.strip(), url) for part in rest.rstrip("/").split(",")]
    return list(dict.fromkeys(addresses))


def parse_text_address(text: str) -> Address:
    """`host:port` of a broker's text port. The port is never left out: a pair's are different ones."""
    try:
        address = _parse_address(text, text)
    except ConfigError:
        address = None
    if address is None or not text.endswith(f":{address.port}"):
        raise ConfigError(
            f"{text!r} is no address of a text port; give host:port, for example localhost:{TEXT_PORT_EXAMPLE}"
        ) from None
    return address


def _parse_address(text: str, url: str) -> Address:
    if text.startswith("["):
        host, bracket, port_text = text[1:].partition("]")
        port_text = port_text.removeprefix(":") if bracket else "?"
    else:
        host, _, port_text = text.partition(":")
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else (0 if port_text else PORT_DEFAULT)
    if not _is_host(host) or not 1 <= port <= 65535:
        raise ConfigError(f"{text!r} in {url!r} is no address; give host:port, for example 127.0.0.1:{PORT_DEFAULT}")
    return Address(host, port)


def _is_host(host: str) -> bool:
    try:
        return bool(host.encode("idna")) and not set(host) & set("/@? ")
    except UnicodeError:
        return False


class Addresses:
    """The brokers of one client. All of them are equal; the one that worked last is tried first.

    Failures and recoveries are logged when they change something, not once per retry: a broker that
    is away for an hour is two lines, whatever is waiting for it.
    """

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses
        self._turn = 0
        self._away_since: dict[Address, float] = {}
        # Who said that it was taken out of its cluster, and which codes were logged since the last answer without one.
        self._removed: set[Address] = set()
        self._told: set[str] = set()

    def __str__(self) -> str:
        return ",".join(map(str, self._addresses))

    def preferred(self) -> Address:
        return self._addresses[self._turn]

    def failed(self, address: Address, reason: str) -> None:
        """Try another one next time, if there is another one."""
        self.pass_over(address)
        if address not in self._away_since:
            self._away_since[address] = time.monotonic()
            _log.warning("lost the broker at %s: %s; trying again", address, reason)

    def pass_over(self, address: Address) -> None:
        """It answers, but cannot do now what it was asked for: another one may."""
        if address == self.preferred():
            self._turn = (self._turn + 1) % len(self._addresses)

    @property
    def all_removed(self) -> bool:
        """Whether every one of them has said that it was taken out of its cluster: none will answer by waiting."""
        return len(self._removed) == len(set(self._addresses))

    def is_news(self, code: str) -> bool:
        """Whether a broker that cannot just now says so for the first time, for whichever call."""
        is_news = code not in self._told
        self._told.add(code)
        return is_news

    def answered(self, address: Address, code: str | None) -> None:
        """With this code of an error, or without one."""
        if code is None:
            self._told.clear()
        if code == "node_removed":
            self._removed.add(address)
        else:
            self._removed.discard(address)

    def worked(self, address: Address) -> None:
        since = self._away_since.pop(address, None)
        if since is not None:
            _log.warning("the broker at %s answers again, after %.1f s", address, time.monotonic() - since)

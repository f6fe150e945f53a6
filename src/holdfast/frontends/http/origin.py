"""Who may talk to the broker through a browser: only pages that the broker itself served.

A web page can make its visitor's browser send requests to any address the visitor can reach, a broker
on localhost among them. Three rules keep such pages out; programs that are no browsers notice none:

- a request that changes something and says that it comes from another origin is refused;
- bodies need a media type that browsers do not send across origins without asking (`exchange`);
- a broker that listens on a loopback address answers only to addresses and `localhost` in `Host`,
  because a page can point its own name at 127.0.0.1 and would then be of the same origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from holdfast.model.errors import CrossOrigin

_HOSTS_REMEMBERED_MAX = 64


class OriginRule:
    """The rules for one listening address; `names_allowed` are hosts that a proxy in front may pass on."""

    def __init__(self, listen_host: str, names_allowed: Collection[str] = ()) -> None:
        self._any_host = not _is_loopback(listen_host)
        self._names_allowed = {name.lower() for name in names_allowed}
        self._hosts_seen: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes], *, changes_state: bool) -> None:
        """Raise `CrossOrigin` for a request that another site's page caused."""
        host = headers.get(b"host", b"")
        if host not in self._hosts_seen:
            self._check_host(host)
        if not changes_state:
            return
        source = headers.get(b"origin") or headers.get(b"referer")
        if source is None:
            if headers.get(b"sec-fetch-site", b"none") not in {b"none", b"same-origin"}:
                raise CrossOrigin("a page of another site may not change anything here")
            return
        netloc = _netloc(source)
        same = bool(netloc) and netloc == host.decode("latin-1").lower()
        if not same and _name_of(netloc) not in self._names_allowed:
            raise CrossOrigin("a page of another site may not change anything here")

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host.decode("latin-1").lower())
        if not (self._any_host or not name or name in self._names_allowed or _is_local_name(name)):
            raise CrossOrigin(
                "this broker listens on a loopback address and answers to addresses and 'localhost' only, "
                "so that no web page can reach it under a name of its own; allow another name with http_host_names"
            )
        if len(self._hosts_seen) < _HOSTS_REMEMBERED_MAX:
            self._hosts_seen.add(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(source: bytes) -> str:
    try:
        return urlsplit(source.decode("latin-1")).netloc.lower()
    except ValueError:
        return ""


def _name_of(netloc: str) -> str:
    """The host without its port; an IPv6 address without its brackets."""
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0]

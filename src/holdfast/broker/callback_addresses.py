"""Where callbacks may go: a broker must not become a way into somebody else's network.

An address is judged twice. As it is written, when somebody subscribes; and as what it resolves to, each time before a
connection is made, since a name may mean another address by then. The connection goes to the address that was judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from holdfast.model.errors import BadValue, CallbackRefused

IpAddress = IPv4Address | IPv6Address

# Words among networks: all addresses of the internet; and this machine, where nobody else reaches the broker.
PUBLIC: Final = "public"
LOCAL: Final = "local"
_HOST_BYTES_MAX: Final = 253
_LABEL_MAX: Final = 63
_PORT_MAX: Final = 65535
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?\Z")
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
# The only part of the IPv6 space that is given out.
_GLOBAL_V6: Final = IPv6Network("2000::/3")
# Special all the same; which of these the language's own list knows differs from release to release.
_NOT_PUBLIC: Final = tuple(
    map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
# Gateways that make an IPv4 connection of it: what counts is the address inside.
_TRANSLATED: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))


class CallbackAddress(NamedTuple):
    """A host, as a name or a number, and a port."""

    host: str
    port: int

    @property
    def ip(self) -> IpAddress | None:
        """The address where the host is one and not a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_callback_address(text: str) -> CallbackAddress:
    """`HOST:PORT`, also `[::1]:9000`. Raises `BadValue`."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _PORT_MAX):
        raise _bad_address(text)
    if host.startswith("[") and host.endswith("]"):
        try:
            # Without a zone: which interface that means differs from node to node.
            return CallbackAddress(str(IPv6Address(host[1:-1].partition("%")[0])), int(port))
        except ValueError:
            raise _bad_address(text) from None
    labels = host.removesuffix(".").split(".")
    if len(host) > _HOST_BYTES_MAX or not _HOST.match(host) or not all(0 < len(each) <= _LABEL_MAX for each in labels):
        raise _bad_address(text)
    return CallbackAddress(host.lower(), int(port))


def _bad_address(text: str) -> BadValue:
    return BadValue(f"{text[:100]!a} is no callback address; write HOST:PORT, such as 192.0.2.7:9000")


def default_name(address: CallbackAddress) -> str:
    """The name of a subscription that was given none: the same for the same address."""
    ip = address.ip
    host = ip.exploded.replace(":", "") if isinstance(ip, IPv6Address) else address.host.rstrip(".")
    return f"{host[:180]}_{address.port}"


class CallbackPolicy:
    """Which addresses and ports may be connected to. Raises `BadValue` where a network is none."""

    def __init__(self, networks: Sequence[str], *, port_min: int, is_local: bool) -> None:
        self._port_min = port_min
        self._allows_public = PUBLIC in networks
        self._allows_own = LOCAL in networks and is_local
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in networks:
            if text == LOCAL:
                self._networks += _LOOPBACK if is_local else ()
            elif text != PUBLIC:
                try:
                    self._networks.append(ip_network(text))
                except ValueError:
                    raise BadValue(
                        f"{text!a} is no network; write one as 10.0.0.0/8 or fd00::/8, or {PUBLIC} or {LOCAL}"
                    ) from None

    def check(self, address: CallbackAddress) -> None:
        """Raises `CallbackRefused`; of a name, only its port is known."""
        if not self._networks and not self._allows_public:
            raise CallbackRefused(
                "this broker connects to nobody: callback_networks names no network that counts here; add one, on "
                "every node"
            )
        if address.port < self._port_min:
            raise CallbackRefused(
                f"port {address.port} is below {self._port_min}, where callbacks may go; take another port, or set "
                "callback_port_min"
            )
        if address.ip is not None:
            self.check_ip(address.ip)

    def check_ip(self, ip: IpAddress) -> None:
        """Raises `CallbackRefused` unless a connection may be made to this address."""
        if not all(self._is_allowed(each) for each in _meant(ip)):
            raise CallbackRefused(
                f"callbacks may not go to {ip}: it is not in callback_networks; add its network there, on every node"
            )

    def check_own(self, ip: IpAddress) -> None:
        """Raises `CallbackRefused` unless it may be one of this machine's addresses, though others could reach it."""
        if not self._allows_own and not all(_is_in(each, self._networks) for each in _meant(ip)):
            raise CallbackRefused(
                f"callbacks may not go to {ip}: it is this machine, and callback_networks does not name its network; "
                "add it there"
            )

    def _is_allowed(self, ip: IpAddress) -> bool:
        if _is_in(ip, self._networks):
            return True
        if not self._allows_public or not ip.is_global or ip.is_multicast or ip.is_reserved or _is_in(ip, _NOT_PUBLIC):
            return False
        return isinstance(ip, IPv4Address) or ip in _GLOBAL_V6


def _is_in(ip: IpAddress, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(ip.version == network.version and ip in network for network in networks)


def _meant(ip: IpAddress) -> Iterator[IpAddress]:
    """The addresses at which a packet for this one may arrive: an IPv6 address may carry another inside."""
    if isinstance(ip, IPv4Address):
        yield ip
        return
    if ip.ipv4_mapped is not None:
        yield ip.ipv4_mapped
        return
    yield ip
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip.teredo is not None:
        yield from ip.teredo
    for network in _TRANSLATED:
        if ip in network and not ip.is_loopback:
            yield IPv4Address(int(ip) & 0xFFFFFFFF)

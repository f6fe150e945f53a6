"""Where the other nodes are: as the settings say, as the nodes themselves have said, and as was last known here.

`peers.json` in the data directory has the other nodes of the cluster with their addresses::

    {"n1": "10.0.0.5:7000", "n3": "10.0.0.7:7000"}

It follows the control state, so that a node finds the others again whatever its settings say, and knows before it opens
anything that there are others. It is written to a temporary name, synced and renamed. Crash cases: it is absent or old;
then the settings are all there is, or some of its addresses lead nowhere. It is a help to find others, and decides
nothing: who belongs to the cluster stands in the control log. A damaged one is passed over, and written anew.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster.link_dialed import split_address
from holdfast.model.errors import BadValue
from holdfast.model.limits import CLUSTER_NODES_MAX
from holdfast.storage.durable import replace_file, sync_directory
from holdfast.wire.peer import Hello

log = structlog.get_logger("holdfast.cluster")

FILE_NAME: Final = "peers.json"
_EVERYWHERE: Final = ("0.0.0.0", "::", "")
# Those of a cluster, and as many that want to belong to it.
_INTRODUCED_MAX: Final = 2 * CLUSTER_NODES_MAX


class PeerBook:
    """Addresses of other nodes by name, those of the settings first."""

    def __init__(self, directory: Path, own: str, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._own = own
        self.settings = {node: address for node, address in settings.items() if node != own}
        self.noted = {node: address for node, address in _load(directory).items() if node != own}
        self._is_written = True
        # Said by nodes that this one has met; the control log may not have told of them here yet.
        self._introduced: dict[str, str] = {}
        self._gone: set[str] = set()

    @property
    def addresses(self) -> dict[str, tuple[str, ...]]:
        """All that is known of each node, without those that have left."""
        found: dict[str, tuple[str, ...]] = {}
        for source in (self.settings, self.noted, self._introduced):
            for node, address in source.items():
                if node not in self._gone and address not in found.get(node, ()):
                    found[node] = (*found.get(node, ()), address)
        return found

    def introduce(self, node: str, address: str) -> bool:
        """A node has said where it is; whether that is news."""
        if node == self._own or not is_usable(address) or address in self.addresses.get(node, ()):
            return False
        self._introduced.pop(node, None)
        self._introduced[node] = address
        if len(self._introduced) > _INTRODUCED_MAX:
            del self._introduced[next(iter(self._introduced))]
        self._gone.discard(node)
        return True

    def note(self, nodes: Mapping[str, str], gone: Collection[str]) -> None:
        """What the control log says of where nodes are, and of who has left; durable, as far as the disk allows."""
        self._gone = set(gone)
        self._introduced = {node: address for node, address in self._introduced.items() if node not in self._gone}
        noted = {node: address for node, address in sorted(nodes.items()) if node != self._own and is_usable(address)}
        if noted == self.noted and self._is_written:
            return
        self.noted = noted
        self._is_written = False
        self._write()

    def _write(self) -> None:
        try:
            replace_file(self._directory / FILE_NAME, msgspec.json.encode(self.noted) + b"\n")
            sync_directory(self._directory)
        except OSError as error:
            log.warning(
                "peers_not_noted",
                problem=str(error),
                hint="it is tried again at the next change; until then the settings tell",
            )
        else:
            self._is_written = True


def is_usable(address: str) -> bool:
    """Whether others could reach somebody there: who listens everywhere has not said where."""
    try:
        return split_address(address)[0] not in _EVERYWHERE
    except BadValue:
        return False


def reachable(listened: str, seen_from: str | None) -> str:
    """The address to tell others: for one that listens everywhere, under the name it goes out with."""
    host, port = split_address(listened)
    if host not in _EVERYWHERE or seen_from is None:
        return listened
    return f"[{seen_from}]:{port}" if ":" in seen_from else f"{seen_from}:{port}"


def with_host(hello: Hello, seen_from: str) -> Hello:
    """What a node says of itself, with an address of its peer port that can be used."""
    told = hello.addresses.get("peer", "")
    try:
        address = reachable(told, seen_from)
    except BadValue:
        return hello
    if address == told:
        return hello
    return msgspec.structs.replace(hello, addresses=hello.addresses | {"peer": address})


def is_loopback(address: str) -> bool:
    """Whether only nodes of the same machine reach somebody there."""
    try:
        return ipaddress.ip_address(split_address(address)[0]).is_loopback
    except (BadValue, ValueError):
        return False


def _load(directory: Path) -> dict[str, str]:
    file = directory / FILE_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("peers_unreadable", file=str(file), problem=str(error))
        return {}

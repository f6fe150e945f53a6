"""What a proxy is told: where it listens, which groups there are, how long it is patient."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from holdfast.client.addresses import Address, parse_url
from holdfast.model.errors import ConfigError

# A queue's id is its number in its group times this, and the group's slot. Never changed: ids follow from it.
SLOTS: Final = 1024
GROUPS_MAX: Final = 64
NODES_PER_GROUP_MAX: Final = 15

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A cluster: its name, which must never change, and its nodes' HTTP ports."""

    name: str
    nodes: tuple[Address, ...]

    @property
    def slot(self) -> int:
        """A number that follows from the name alone, so that every proxy has the same."""
        return zlib.crc32(self.name.encode()) % SLOTS

    def weight(self, topic: str) -> bytes:
        """Of all groups the one with the highest weight gets a new topic: one more group takes its share of each."""
        return sha256(f"{self.name}\n{topic}".encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    listen: Address
    groups: tuple[GroupSettings, ...]
    # How long a call is tried again, with its ids, before it is given up.
    patience_s: float = 8.0
    # How long one node may take to answer one try.
    attempt_s: float = 3.0
    connect_s: float = 1.0
    # How often each node is asked whether it is well.
    check_s: float = 0.5
    # To one node: each is a request under way.
    connections_per_node_max: int = 256
    # To one node, beside those: what may take long, as tails, pages of messages and uploads do.
    streams_per_node_max: int = 128


def parse_groups(texts: Sequence[str]) -> tuple[GroupSettings, ...]:
    """`name=host:port,host:port`, each. Raises `ConfigError`."""
    groups: list[GroupSettings] = []
    for text in texts:
        name, separator, addresses = text.partition("=")
        if not separator or not _NAME.match(name):
            raise ConfigError(f"--groups {text!r}: give name=host:port,host:port, for example a=127.0.0.1:8090")
        nodes = tuple(parse_url(addresses))
        if len(nodes) > NODES_PER_GROUP_MAX:
            raise ConfigError(f"--groups {name}: {len(nodes)} nodes; at most {NODES_PER_GROUP_MAX} are allowed")
        groups.append(GroupSettings(name, nodes))
    if not 0 < len(groups) <= GROUPS_MAX:
        raise ConfigError(f"give 1 to {GROUPS_MAX} groups, each as --groups name=host:port,host:port")
    _check_apart(groups)
    return tuple(sorted(groups, key=lambda group: group.slot))


def _check_apart(groups: Sequence[GroupSettings]) -> None:
    by_slot: dict[int, str] = {}
    addresses: dict[Address, str] = {}
    for group in groups:
        other = by_slot.setdefault(group.slot, group.name)
        if sum(each.name == group.name for each in groups) > 1:
            raise ConfigError(f"--groups {group.name} is named twice; give all nodes of a group together")
        if other != group.name:
            raise ConfigError(f"groups {other} and {group.name} have the same slot {group.slot}; rename the new one")
        for address in group.nodes:
            if addresses.setdefault(address, group.name) != group.name:
                raise ConfigError(f"{address} is in the groups {addresses[address]} and {group.name}; it can be in one")

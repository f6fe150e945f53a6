"""Where the nodes of a local cluster listen: one block of ports, so that one number says it all.

===========  =============================  ==============
for          port                           with 8080, n2
===========  =============================  ==============
text         base_port + i                  8081
http         base_port + 10 + i             8091
peer         base_port + 20 + i             8101
===========  =============================  ==============

`i` is 0 for the first node. Where no base port is given, a block of 40 is chosen between 20000 and 32000: below the
range from which systems give ports to clients, since a client that reconnects while a node is away could otherwise be
given the very port that the node wants back. The last port of the block stays bound while the cluster is there, so
that clusters which are started at the same time choose different blocks.

A server that is no cluster gets one port between 10000 and 20000, and keeps it for as long as the process that asked
lives: whatever it is killed and started again for, nobody else is given it meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.testing.errors import ClusterFailed

HOST: Final = "127.0.0.1"
NODES_MAX: Final = 9
BASE_PORT_MAX: Final = 65_535 - 30
_HTTP: Final = 10
_PEER: Final = 20
_BLOCK: Final = 40
_BLOCKS: Final = range(20_000, 32_000, _BLOCK)
_SINGLE: Final = range(10_000, 20_000)
_SINGLE_TRIES_MAX: Final = 1000
# What keeps single ports from being given twice, by this process or by another one.
_kept: list[socket.socket] = []


@atexit.register
def _give_back() -> None:
    for mark in _kept:
        mark.close()


class Ports(NamedTuple):
    """The ports of one node."""

    text: int
    http: int
    peer: int


def of_node(base_port: int, index: int) -> Ports:
    return Ports(base_port + index, base_port + _HTTP + index, base_port + _PEER + index)


def in_use(base_port: int, indices: Iterable[int]) -> list[str]:
    """The ports of the block that somebody else has, such as `n2 http 8091`."""
    return [
        f"n{index + 1} {name} {port}"
        for index in indices
        for name, port in of_node(base_port, index)._asdict().items()
        if not _is_free(port)
    ]


def choose(nodes: int) -> tuple[int, socket.socket]:
    """A base port whose ports are all free, and what keeps others from choosing it; close that at the end."""
    for base_port in random.sample(_BLOCKS, len(_BLOCKS)):
        mark = _marked(base_port + _BLOCK - 1)
        if mark is None:
            continue
        if not in_use(base_port, range(nodes)):
            return base_port, mark
        mark.close()
    raise ClusterFailed("found no block of free ports between 20000 and 32000; give one with base_port")


def free_port() -> int:
    """One port for a server of this process, which stays its own over every restart of that server."""
    rolled = random.SystemRandom()  # processes that are seeded alike roll different ports
    for _ in range(_SINGLE_TRIES_MAX):
        port = rolled.choice(_SINGLE)
        # Bound for datagrams: that keeps others who ask here away and leaves it to the server, which speaks TCP.
        mark = _marked(port, socket.SOCK_DGRAM)
        if mark is None:
            continue
        if _is_free(port):
            _kept.append(mark)
            return port
        mark.close()
    raise ClusterFailed("found no free port between 10000 and 20000")


def addresses(ports: Sequence[int], host: str = HOST) -> list[str]:
    return [f"{host}:{port}" for port in ports]


def _marked(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket | None:
    mark = socket.socket(type=kind)
    try:
        mark.bind((HOST, port))
    except OSError:
        mark.close()
        return None
    return mark


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        # As the node itself binds: connections that have ended a moment ago are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True

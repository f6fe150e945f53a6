"""Finding out who listens at an address: all that a newcomer is given of a cluster is where some node listens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, NamedTuple

from holdfast.backends.cluster.link_dialed import split_address
from holdfast.model.errors import BadPeerFrame, Unavailable
from holdfast.model.limits import PEER_HELLO_BYTES_MAX
from holdfast.wire import peer
from holdfast.wire.peer import Hello

_MEET_S: Final = 5.0


class Met(NamedTuple):
    """Who answered, and under which of its own addresses this node went there."""

    hello: Hello
    own_host: str


class Refused(Unavailable):
    """Whoever answered does not want this node, and says why."""


async def meet(address: str, hello: Hello) -> Met:
    """Say hello to whoever listens there. Raises `Refused`, `Unavailable`."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(_MEET_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(peer.hello_frame(hello))
                head = await reader.readexactly(peer.HEAD_BYTES)
                kind, size = peer.read_head(memoryview(head), 0, PEER_HELLO_BYTES_MAX)
                body = await reader.readexactly(size)
                own_host = str(writer.get_extra_info("sockname")[0])
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        raise Unavailable(f"{address} does not answer") from None
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{address} cannot be reached: {error}") from error
    except (EOFError, BadPeerFrame) as error:
        raise Unavailable(f"{address} does not answer like the peer port of a node: {error}") from error
    if kind == peer.REFUSAL:
        raise Refused(peer.decode_refusal(body))
    if kind != peer.HELLO:
        raise Unavailable(f"{address} does not answer like the peer port of a node")
    return Met(peer.decode_hello(body), own_host)

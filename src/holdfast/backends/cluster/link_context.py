"""What all connections of a node share: who it is, whom it wants, whom it tells, how long it waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

import structlog

from holdfast.consensus.messages import Message
from holdfast.wire.peer import Hello, agreed_version

log = structlog.get_logger("holdfast.cluster")

# How a refusal reads where both belong to a cluster, and not to the same; and how one begins that is over in a moment.
BELONGS_ELSEWHERE: Final = " belongs to the cluster "
NOT_YET: Final = "not yet: "
# Troubles that are remembered, so that each is logged once. Beyond that, some are logged again.
_TROUBLES_MAX: Final = 1000


class LinkEvents(Protocol):
    """What a node hears of its links. Everything is called from the loop, nothing from within `send`."""

    def on_messages(self, hello: Hello, messages: list[tuple[int, Message]]) -> None:
        """One frame's messages, each with its group, in the order they were sent."""

    async def on_request(self, node: str, method: int, body: memoryview) -> bytes:
        """Answer a request. A `HoldfastError` is raised at the other side; anything else is `internal` there."""

    def on_up(self, hello: Hello) -> None:
        """From now on `send` and `request` reach this node."""

    def on_down(self, node: str) -> None:
        """After an `on_up`: the link is lost, and with it whatever was under way."""

    def on_dropped(self, node: str, groups: Collection[int]) -> None:
        """Messages of these groups were dropped since the node reads too slowly; now there is room: begin again.

        It comes when the buffer is half empty or less, once for any number of messages that were dropped.
        """

    def on_heard(self, node: str) -> None:
        """Bytes came from this node."""

    def on_nobody_there(self, node: str) -> None:
        """A try to connect was refused: no process listens there."""

    def on_namesake(self, hello: Hello) -> None:
        """Somebody else goes by the name of this node, and is refused."""

    def refusal(self, hello: Hello) -> str | None:
        """Why this peer is not wanted, for both sides' logs; `None` if it is."""


class LinkTiming(NamedTuple):
    """All in seconds."""

    # So long after the last frame, an empty one says that this node is alive.
    keepalive_s: float = 0.1
    # A connection that is silent for so long is closed: its machine is gone, or the network is.
    silence_s: float = 5.0
    # To connect and to say who one is.
    hello_s: float = 5.0
    # Between tries to connect: at first, at most, and to a peer that does not want to talk.
    retry_min_s: float = 0.05
    retry_max_s: float = 1.0
    refused_retry_s: float = 5.0


class LinkContext:
    """Shared by the connections of one `PeerLinks`."""

    def __init__(self, hello: Callable[[], Hello], events: LinkEvents, timing: LinkTiming) -> None:
        self.hello = hello
        self.events = events
        self.timing = timing
        # Messages that were not sent, since the link was down or its buffer full.
        self.dropped_messages = 0
        self._troubles: dict[str, str] = {}

    def refusal(self, hello: Hello) -> str | None:
        """Why nobody talks to this peer, whoever called whom."""
        own = self.hello()
        if agreed_version(own, hello) is None:
            older = min(own, hello, key=lambda each: each.version)
            return (
                f"{hello.node} speaks {_spoken(hello)} of the protocol between nodes, {own.node} {_spoken(own)}; "
                f"upgrade {older.node}, one release after the other"
            )
        if hello.node == own.node:
            if hello.boot == own.boot:
                return f"{own.node} has connected to itself"
            self.events.on_namesake(hello)
            return f"two nodes go by the name {own.node}; give one of them another with --node"
        if hello.cluster and own.cluster and hello.cluster != own.cluster:
            return f"{hello.node}{BELONGS_ELSEWHERE}{hello.cluster}, {own.node} to {own.cluster}"
        return self.events.refusal(hello)

    def version_with(self, hello: Hello) -> int:
        """What is spoken with a peer that was not refused."""
        version = agreed_version(self.hello(), hello)
        assert version is not None
        return version

    def trouble(self, where: str, event: str, **facts: object) -> None:
        """Log what is wrong with somebody once, and again only when it has changed or was right in between."""
        said = f"{event} {facts.get('reason')}"
        if self._troubles.get(where) == said:
            return
        if len(self._troubles) >= _TROUBLES_MAX:
            self._troubles.clear()
        self._troubles[where] = said
        (log.debug if str(facts.get("reason")).startswith(NOT_YET) else log.warning)(event, **facts)

    def trouble_is_over(self, where: str) -> None:
        self._troubles.pop(where, None)


def _spoken(hello: Hello) -> str:
    if hello.oldest_spoken == hello.version:
        return f"version {hello.version}"
    return f"versions {hello.oldest_spoken} to {hello.version}"

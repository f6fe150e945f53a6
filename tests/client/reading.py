"""What the client's tests read with."""

from __future__ import annotations

from holdfast.client import Message, Subscription

# For what never happens, not for what is slow.
DEADLINE_S = 60.0


async def take(messages: Subscription, count: int) -> list[Message]:
    """The next messages, as many as are asked for."""
    found: list[Message] = []
    while len(found) < count:
        some = await messages.take(count - len(found), timeout_s=DEADLINE_S)
        assert some, f"only {len(found)} of {count} came"
        found += some
    return found

"""Commands on their way into the control log: gathered, sent to whoever leads, sent again until decided.

One batch of commands is under way at a time; what is proposed meanwhile makes the next one. So commands of one
node are decided in the order they were proposed, and a thousand cursors that move at once are one entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast.backends.cluster.commands import COMMANDS_MAX, Command, DrawCursor, Outcome
from holdfast.broker.results import refuse
from holdfast.model.draws import Drawn
from holdfast.model.errors import HoldfastError, LeaderChanged, NotLeader, Unavailable
from holdfast.model.limits import PROPOSALS_MAX
from holdfast.wire.peer_errors import decode_error

# So long is tried to have something decided before its proposer is told that it could not be.
PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.02

# Has commands decided, wherever the leader is; raises where that did not work or is not known.
Decide = Callable[[list[Command]], Awaitable[list[Outcome]]]


class Proposals:
    """The queue of one node towards the control log."""

    def __init__(
        self,
        decide: Decide,
        no_quorum: Callable[[], HoldfastError],
        refusal: Callable[[Command], HoldfastError | None] = lambda command: None,
    ) -> None:
        self._decide = decide
        self._no_quorum = no_quorum
        # Why a command may not be proposed now.
        self._refusal = refusal
        self._loop = asyncio.get_running_loop()
        self._queue: list[tuple[Command, asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None

    def propose(self, command: Command) -> asyncio.Future[None]:
        """Done once it is decided and applied on the node that leads; fails with what it ended with."""
        return self._proposed(command)

    def propose_draw(self, command: DrawCursor) -> asyncio.Future[list[Drawn]]:
        """The same; the future has what was drawn."""
        return self._proposed(command)

    def _proposed(self, command: Command) -> asyncio.Future[Any]:
        decided: asyncio.Future[Any] = self._loop.create_future()
        refusal = self._refusal(command)
        if refusal is None and len(self._queue) >= PROPOSALS_MAX:
            refusal = Unavailable("too many changes wait to be decided; try again in a moment")
        if refusal is not None:
            refuse(decided, refusal)
            return decided
        self._queue.append((command, decided))
        if self._sender is None:
            self._sender = self._loop.create_task(self._send_on())
        return decided

    async def stop(self) -> None:
        """What was sent, or sent again, may be decided after this."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        stopped = LeaderChanged("the broker stopped before this was known to be decided")
        _refuse_all([decided for _, decided in self._queue], stopped)
        self._queue.clear()

    async def _send_on(self) -> None:
        """Send batch after batch until nothing waits."""
        try:
            while self._queue:
                # Whatever else this turn of the loop proposes joins the batch.
                await asyncio.sleep(0)
                batch, self._queue = self._queue[:COMMANDS_MAX], self._queue[COMMANDS_MAX:]
                waiting = [decided for _, decided in batch]
                try:
                    outcomes = await self._decided([command for command, _ in batch])
                except HoldfastError as error:
                    _refuse_all(waiting, error)
                except asyncio.CancelledError:
                    self._queue = batch + self._queue
                    raise
                else:
                    for decided, outcome in zip(waiting, outcomes, strict=True):
                        if isinstance(outcome, bytes):
                            refuse(decided, decode_error(outcome))
                        elif not decided.done():
                            decided.set_result(outcome)
        finally:
            self._sender = None

    async def _decided(self, commands: list[Command]) -> list[Outcome]:
        """Try until it is known: to be sent twice does a command no harm."""
        deadline = self._loop.time() + PATIENCE_S
        may_be_decided = False
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._decide(commands)
            except TimeoutError:
                may_be_decided = True
            except NotLeader:
                pass  # nothing was written by this try
            except (Unavailable, LeaderChanged) as error:
                if type(error).code not in _PASSING:
                    if may_be_decided and isinstance(error, Unavailable):
                        raise LeaderChanged(f"this may be decided or not: {error.message}") from error
                    raise
                may_be_decided = True
            if self._loop.time() + _PAUSE_S >= deadline:
                if may_be_decided:
                    raise LeaderChanged(
                        f"this may be decided or not: {self._no_quorum().message}; look, then try again"
                    )
                raise self._no_quorum()
            await asyncio.sleep(_PAUSE_S)


_PASSING: Final = frozenset(("unavailable", "leader_changed", "shutting_down"))


def _refuse_all(futures: list[asyncio.Future[Any]], error: HoldfastError) -> None:
    for future in futures:
        refuse(future, error)

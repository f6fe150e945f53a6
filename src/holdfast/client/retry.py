"""How long to keep trying, how long to pause between tries, and what to say when it was in vain."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

from holdfast.client.addresses import Addresses
from holdfast.client.connection import Request, Response
from holdfast.client.errors import MAYBE_STORED, AnswerLost, AttemptFailed, MaybeStored
from holdfast.client.limits import ATTEMPT_TIMEOUT_S, PAUSE_S_MAX, PAUSE_S_MIN, RETRIED_STATUSES
from holdfast.client.pool import Pool
from holdfast.client.refusals import is_foreign, remote_error
from holdfast.model.errors import ConnectionLost, LeaderChanged, NotStored, OutcomeUnknown, RemoteError

# It was taken out of its cluster: no later try changes that, another broker may be there.
_REMOVED_CODE = "node_removed"

_log = logging.getLogger("holdfast.client")


class Patience:
    """The tries of one operation: a budget of time, pauses that double, and a tally for the error.

    The pause has full jitter, so that many clients that lost one broker do not come back as one. `stores` says that a
    try that arrived may have stored something, whatever the later ones are told.
    """

    def __init__(self, what: str, budget_s: float, addresses: Addresses, *, stores: bool = False) -> None:
        self._what = what
        self._budget_s = budget_s
        self._addresses = addresses
        self._stores = stores
        self._may_be_stored = False
        self._last_word: RemoteError | None = None
        self._started = asyncio.get_running_loop().time()
        self._deadline = self._started + budget_s
        self._pause_s = PAUSE_S_MIN
        self._tried: Counter[str] = Counter()
        self._last_remote: RemoteError | None = None

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def failed(self, failure: AttemptFailed | RemoteError) -> None:
        """Wait before the next try, or raise if the time is up."""
        if isinstance(failure, RemoteError):
            who = "something that is no broker" if is_foreign(failure) else "the broker"
            if failure.code == _REMOVED_CODE:
                if self._addresses.all_removed:
                    # It speaks of its own try; an earlier one may have arrived.
                    raise self._in_vain() if self._stores and self._may_be_stored else failure
            elif self._addresses.is_news(failure.code):
                _log.warning("%s: %s says %s (%s); trying again", self._what, who, failure.code, failure.message)
            self._may_be_stored |= isinstance(failure, OutcomeUnknown)
            self._last_remote = self._last_word = failure
            self._tried[f"{who} said {failure.code}"] += 1
        else:
            self._last_remote = None
            self._may_be_stored |= failure.sent
            self._tried[str(failure)] += 1
        if self.remaining_s <= 0:
            raise self._in_vain() from failure
        pause_s = random.uniform(self._pause_s / 2, self._pause_s)
        self._pause_s = min(PAUSE_S_MAX, self._pause_s * 2)
        await asyncio.sleep(min(pause_s, self.remaining_s))
        if self.remaining_s <= 0:
            raise self._in_vain() from failure

    def _in_vain(self) -> ConnectionLost | RemoteError:
        tried = "; ".join(f"{reason} ({count} times)" for reason, count in self._tried.most_common(8))
        text = f"{self._what} did not get through within {round(self._budget_s, 1):g} s; tried: {tried}"
        if self._stores and self._may_be_stored:
            # Also where the last answer promises that nothing was stored: it speaks of its own try.
            said = "" if self._last_word is None else f"; {self._last_word.code}: {self._last_word.message}"
            return MaybeStored(f"{text}{said}; {MAYBE_STORED}")
        if self._last_remote is not None:
            last = self._last_remote
            return RemoteError(last.code, f"{last.message} [{text}]", last.http_status)
        return ConnectionLost(text)


async def call(
    pool: Pool,
    request: Request,
    budget_s: float,
    *,
    resend: bool = True,
    wait_s: float = 0.0,
    stores: bool = False,
) -> Response:
    """Send until there is an answer that is no reason to try again, at most for `budget_s`.

    An answer that no broker gave is a reason: something else listens at the address for a while, or stands in between.
    With `resend=False` a request that may have arrived is not sent again: that is `AnswerLost`.
    `wait_s` is how long the broker was asked to wait before it answers. With `stores`, one that ends in vain says
    whether it may have been stored all the same.
    """
    patience = Patience(str(request), budget_s, pool.addresses, stores=stores)
    while True:
        timeout_s = max(0.001, patience.remaining_s)
        if resend:
            timeout_s = min(ATTEMPT_TIMEOUT_S + wait_s, timeout_s)
        try:
            response = await pool.attempt(request, timeout_s)
        except AttemptFailed as failure:
            if failure.sent and not resend:
                raise _answer_lost(request, failure) from failure
            await patience.failed(failure)
            continue
        if response.status < 400:
            return response
        error = remote_error(response)
        if isinstance(error, OutcomeUnknown) and not resend:
            lost = error.code == LeaderChanged.code or is_foreign(error)
            raise _answer_lost(request, error) if lost else error from error
        is_passing = response.status in RETRIED_STATUSES or is_foreign(error)
        if not is_passing or not (resend or isinstance(error, NotStored)):
            raise error
        await patience.failed(error)


def _answer_lost(request: Request, failure: AttemptFailed | RemoteError) -> AnswerLost:
    return AnswerLost(
        f"lost the broker behind {request} ({failure}): it is not known whether it was stored. It is "
        "not sent again: it has no id, or the broker does not know the topic's partitions"
    )

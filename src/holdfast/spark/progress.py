"""A streaming query's progress as a cursor in the brokers, where its lag is seen next to that of other readers.

The source moves the cursor when Spark asks it for the next batch: the one before is done then. A query that is stopped
behind a batch, or has the trigger `once`, does not ask again. A listener hears of every batch as it ends; `session`
adds one. But Spark calls it later, in the driver's Python, which may have ended by then; then the next start of the
query moves the cursor. Both say the same, and a cursor never moves back.

The cursors of a topic with a processor stand in what the processor makes, where offsets of the topic mean nothing: none
is moved there. It is asked each time, since a processor may come, or a topic with one, while a query runs.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast.model.errors import HoldfastError, RemoteError
from holdfast.spark.offsets import StreamOffsets, from_json

if TYPE_CHECKING:
    from holdfast.client import BlockingClient

# A listener is called for all queries of a session, one after the other: a broker that is away must not hold it up.
_TIMEOUT_S = 5.0

_log = logging.getLogger("holdfast.spark")


@lru_cache
def warn_hidden(group: str, topic: str) -> None:
    """Say, once, that no cursor of the group can stand in a topic."""
    _log.warning(
        "%s has a processor, so its cursors stand in what that makes: none shows how far %s is, and retention does not "
        "wait for it",
        topic,
        group,
    )


def publish_progress(client: BlockingClient, reached: StreamOffsets) -> None:
    """Move the group's cursors; a query does not fail because its progress cannot be shown."""
    if reached.group is None:
        return
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, number), offset in reached.places.items():
        if topic not in reached.gone:
            by_topic.setdefault(topic, {})[number] = offset
    for topic, offsets in by_topic.items():
        try:
            if client.describe(topic).delivers_from == topic:
                _move(client, topic, reached.group, offsets)
            else:
                warn_hidden(reached.group, topic)
        except HoldfastError as error:
            # Of a topic that is gone the planning will tell.
            level = logging.INFO if error.code == "topic_not_found" else logging.WARNING
            _log.log(level, "the progress of %s in %s is not shown: %s", reached.group, topic, error)


def _move(client: BlockingClient, topic: str, group: str, offsets: dict[int, int]) -> None:
    try:
        client.acknowledge(topic, group, offsets)
    except RemoteError as error:
        if error.code != "cursor_not_found":
            raise
        # Somebody deleted it while the query runs: it is shown again from here on.
        for number, offset in offsets.items():
            client.seek(topic, group, offset, number)


class ProgressListener(StreamingQueryListener):
    """Publishes the progress of every query that has a `groupId`."""

    def __init__(self) -> None:
        self._clients: dict[str, BlockingClient] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to tell yet."""

    def onQueryProgress(self, event: Any) -> None:
        for source in event.progress.sources:
            reached = _reached(source.endOffset)
            if reached is None:
                continue
            try:
                publish_progress(self._client(reached.servers), reached)
            except (HoldfastError, RuntimeError) as error:
                # Where the program is at its end, Python starts no threads any more, and raises RuntimeError.
                _log.warning(
                    "the cursor of %s is not moved now: %s; the next start of the query moves it", reached.group, error
                )

    def onQueryTerminated(self, event: Any) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, servers: str) -> BlockingClient:
        from holdfast.client import connect_blocking

        if servers not in self._clients:
            self._clients[servers] = connect_blocking(servers, timeout_s=_TIMEOUT_S)
        return self._clients[servers]


def _reached(end_offset: str | None) -> StreamOffsets | None:
    """The offsets of one of our sources that has a group; queries have other sources, too."""
    try:
        kept = json.loads(end_offset or "null")
        if not isinstance(kept, dict) or "group" not in kept or "servers" not in kept:
            return None
        return from_json(kept)
    except (ValueError, HoldfastError):
        return None

"""At the level `debug`: the way of a change through the control log, on each node that it passes.

Only changes that people ask for, of subscriptions and of nodes; cursors move by the thousand. Where the level is off,
nothing is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec
import structlog

from holdfast.backends.cluster import commands
from holdfast.backends.cluster.commands import AddCallback, ChangeMember, Command, RemoveCallback
from holdfast.model.entries import KIND_COMMAND, NOTE_HEAD_BYTES, Entry

log = structlog.get_logger("holdfast.cluster")


def is_on() -> bool:
    return bool(log.is_enabled_for(logging.DEBUG))


def tell(event: str, changes: Iterable[Command], **facts: object) -> None:
    for change in changes:
        match change:
            case AddCallback():
                log.debug(event, change="subscribe", topic=change.topic, address=change.address, **facts)
            case RemoveCallback():
                log.debug(event, change="unsubscribe", topic=change.topic, name=change.name, **facts)
            case ChangeMember():
                log.debug(event, change=str(change.kind), node=change.node, **facts)


def tell_entries(event: str, entries: Iterable[Entry]) -> None:
    for entry in entries:
        if entry.kind == KIND_COMMAND:
            try:
                changes = commands.decode(entry.payload[NOTE_HEAD_BYTES:])
            except msgspec.MsgspecError as error:
                # Of a newer build. Whoever applies it says so; that it is stored must not fail over what is told of it.
                log.debug(event, change="not understood", reason=str(error))
            else:
                tell(event, changes)

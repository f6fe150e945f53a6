"""Push and pop, in the shapes of Queen 0.15: what its clients need to send and take messages."""

from __future__ import annotations

from typing import Final

from holdfast.frontends.http import pop, push, schema
from holdfast.frontends.http.routing import BODY_ERRORS, Answer, Content, Route
from holdfast.model import errors

_PUSH_ERRORS: Final = (
    *BODY_ERRORS,
    errors.BadTopicName,
    errors.TopicNotFound,
    errors.TooManyTopics,
    errors.NoQuorum,
    errors.NotLeader,
    errors.LeaderChanged,
    errors.ShuttingDown,
    errors.StorageFailed,
    errors.DiskFull,
)
_POP_ERRORS: Final = (
    errors.Overloaded,
    errors.BadTopicName,
    errors.BadCursorName,
    errors.BadValue,
    errors.NotSupported,
    errors.TopicNotFound,
    errors.TooManyTopics,
    errors.CrossOrigin,
    errors.Unavailable,
    errors.NoQuorum,
    errors.LeaderChanged,
)
_POP_DOC: Final = (
    "Only with `autoAck=true`: messages are taken, durably, before they are handed out, and each goes to one client of "
    "its group. At most once: an answer that is lost takes its messages with it."
)
_POP_ANSWERS: Final = (
    Answer(status=200, doc="Messages of one log, in its order.", contents=(Content(shape=schema.Pop),)),
    Answer(status=204, doc="There is none."),
)

QUEUE: Final = (
    Route(
        method="POST",
        path="/api/v1/push",
        operation="push",
        tag="Queue",
        summary="Push messages",
        doc=(
            "Items of any queues and partitions, in order. The answer comes once all are durable. All are checked "
            "before the first is stored. Where part of it could not be stored, the status is that of the error, and "
            "the body says of each item what became of it: pushing it all again with the same transaction ids stores "
            "the rest."
        ),
        handler=push.push,
        bodies=(
            Content(
                shape=schema.Push,
                example={"items": [{"queue": "orders", "partition": "customer-17", "payload": {"total": 42}}]},
            ),
        ),
        answers=(
            Answer(
                status=201,
                doc="One result an item, in their order.",
                contents=(Content(shape=list[schema.PushResult]),),
            ),
        ),
        errors=_PUSH_ERRORS,
    ),
    Route(
        method="GET",
        path="/api/v1/pop/queue/{queue}",
        operation="popQueue",
        tag="Queue",
        summary="Pop messages",
        doc=_POP_DOC,
        handler=pop.pop,
        query=pop.PARAMS,
        answers=_POP_ANSWERS,
        errors=_POP_ERRORS,
        changes_state=True,
    ),
    Route(
        method="GET",
        path="/api/v1/pop/queue/{queue}/partition/{partition_name}",
        operation="popPartition",
        tag="Queue",
        summary="Pop messages of one partition",
        doc=_POP_DOC,
        handler=pop.pop,
        query=pop.PARAMS,
        answers=_POP_ANSWERS,
        errors=_POP_ERRORS,
        changes_state=True,
    ),
)

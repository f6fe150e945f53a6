"""The table of all calls: what the router finds, what `/openapi.json` says, what `/docs` shows."""

from __future__ import annotations

from typing import Any, Final

from holdfast.frontends.http import (
    batches,
    cursors,
    docs_page,
    health,
    metrics,
    openapi,
    publish,
    read,
    schema,
    tail,
    topics,
)
from holdfast.frontends.http.exchange import BATCHES_TYPE
from holdfast.frontends.http.routing import Answer, Content, Route
from holdfast.model import errors
from holdfast.model.topics import CursorDescription, TopicDescription

_PUBLISH_ERRORS: Final = (
    errors.BadTopicName,
    errors.BadValue,
    errors.TopicNotFound,
    errors.PartitionNotFound,
    errors.TooLarge,
    errors.UnsupportedMediaType,
    errors.CrossOrigin,
    errors.TooManyTopics,
    errors.Unavailable,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StorageFailed,
    errors.DiskFull,
)
_BODY_ERRORS: Final = (
    errors.BadJson,
    errors.BadValue,
    errors.TooLarge,
    errors.UnsupportedMediaType,
    errors.CrossOrigin,
    errors.Overloaded,
    errors.Unavailable,
)
_READ_ERRORS: Final = (
    errors.BadValue,
    errors.TopicNotFound,
    errors.PartitionNotFound,
    errors.OffsetOutOfRange,
    errors.DamagedData,
)
_CURSOR_ERRORS: Final = (errors.BadCursorName, errors.TopicNotFound, errors.CursorNotFound)


def _ok(doc: str, shape: Any) -> tuple[Answer, ...]:
    return (Answer(status=200, doc=doc, contents=(Content(shape=shape),)),)


_TOPICS: Final = (
    Route(
        method="POST",
        path="/v1/topics",
        operation="createTopic",
        tag="Topics",
        summary="Create a topic",
        doc="The topic is durable when the answer comes. All fields but `topic` are optional.",
        handler=topics.create_topic,
        bodies=(Content(shape=schema.CreateTopic, example={"topic": "orders", "partitions": 1}),),
        answers=(
            Answer(
                status=201,
                doc="The topic as it is now.",
                contents=(Content(shape=TopicDescription),),
                headers=(("Location", "the path of the topic"),),
            ),
        ),
        errors=(*_BODY_ERRORS, errors.BadTopicName, errors.TopicExists, errors.TooManyTopics),
    ),
    Route(
        method="GET",
        path="/v1/topics",
        operation="listTopics",
        tag="Topics",
        summary="List all topics",
        handler=topics.list_topics,
        answers=_ok("Every topic, by name.", schema.Topics),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}",
        operation="describeTopic",
        tag="Topics",
        summary="Describe a topic",
        handler=topics.describe_topic,
        answers=_ok("The topic.", TopicDescription),
        errors=(errors.BadTopicName, errors.TopicNotFound),
    ),
    Route(
        method="DELETE",
        path="/v1/topics/{topic}",
        operation="deleteTopic",
        tag="Topics",
        summary="Delete a topic",
        doc="Its messages and cursors go with it.",
        handler=topics.delete_topic,
        answers=(Answer(status=204, doc="It is gone."),),
        errors=(errors.BadTopicName, errors.TopicNotFound, errors.CrossOrigin, errors.Unavailable),
    ),
)

_PUBLISH: Final = (
    Route(
        method="POST",
        path="/v1/topics/{topic}/messages",
        operation="publish",
        tag="Publish",
        summary="Publish messages",
        doc=(
            "Each message has exactly one of `value` (text), `json` (stored as compact JSON text) and `base64` "
            "(bytes). The answer comes once every message is durable. All are checked before the first is stored."
        ),
        handler=publish.publish,
        bodies=(
            Content(
                shape=schema.Publish,
                example={
                    "messages": [
                        {"value": "text"},
                        {"json": {"any": ["json", 1]}, "key": "customer-17", "id": "order-17-created"},
                    ]
                },
            ),
        ),
        answers=_ok("Where each message stands, in the order of the request.", schema.PublishResults),
        errors=(*_PUBLISH_ERRORS, errors.BadJson, errors.BadMessage, errors.BadMessageId),
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}/partitions/{partition}/batches",
        operation="publishBatches",
        tag="Publish",
        summary="Publish record batches",
        doc=(
            "Record batches in Kafka's format, version 2, uncompressed, one after the other: what bulk writers "
            "use. A message's id travels as the record header `holdfast-id`."
        ),
        handler=batches.publish_batches,
        bodies=(Content(media_type=BATCHES_TYPE),),
        answers=_ok("Where each batch stands, in the order of the request.", schema.BatchResults),
        errors=(*_PUBLISH_ERRORS, errors.BadBatch, errors.BadMessage, errors.BadMessageId),
    ),
)

_READ: Final = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/messages",
        operation="read",
        tag="Read",
        summary="Read a partition",
        doc=(
            f"As JSON, or with `Accept: {BATCHES_TYPE}` the stored record batches as they are; the first may then "
            "begin before `offset`, and `max` is not looked at. With `wait_ms`, an empty answer waits for the first "
            "message."
        ),
        handler=read.read,
        query=(read.OFFSET, read.MAX, read.MAX_BYTES, read.WAIT_MS),
        answers=(
            Answer(
                status=200,
                doc="Messages, and where to go on.",
                contents=(Content(shape=schema.Messages), Content(media_type=BATCHES_TYPE)),
                headers=(
                    ("Holdfast-Next-Offset", "with batches: the offset to ask for next"),
                    ("Holdfast-Start-Offset", "with batches: the oldest offset of the partition"),
                    ("Holdfast-End-Offset", "with batches: the offset the next message will get"),
                ),
            ),
        ),
        errors=(errors.BadTopicName, *_READ_ERRORS),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/offsets",
        operation="offsetAt",
        tag="Read",
        summary="Find an offset by time",
        handler=read.offset_at,
        query=(read.TIMESTAMP,),
        answers=_ok("The first message of that time or later; the end if there is none.", schema.OffsetAnswer),
        errors=(errors.BadTopicName, errors.BadValue, errors.TopicNotFound, errors.PartitionNotFound),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/tail",
        operation="tail",
        tag="Read",
        summary="Follow a topic",
        doc=(
            "Server-sent events, one a message. `id:` is `partition-offset`, `data:` the message with its "
            "`partition`. A comment comes every 15 seconds in which nothing else does. `event: gap` tells of messages "
            "that expired or are damaged; `event: end` with an error means that the topic is gone."
        ),
        handler=tail.tail,
        query=(tail.FROM, tail.PARTITION),
        request_headers=(("Last-Event-ID", "the id of the last event seen: the stream goes on behind it"),),
        answers=(
            Answer(
                status=200,
                doc="Events until one side closes the connection.",
                contents=(Content(media_type=tail.EVENT_STREAM_TYPE),),
            ),
        ),
        errors=(errors.BadTopicName, *_READ_ERRORS),
    ),
)

_CURSORS: Final = (
    Route(
        method="GET",
        path="/v1/cursors",
        operation="listCursors",
        tag="Cursors",
        summary="List all cursors",
        handler=cursors.list_cursors,
        answers=_ok("Every cursor of every topic.", schema.Cursors),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/cursors",
        operation="listTopicCursors",
        tag="Cursors",
        summary="List the cursors of a topic",
        handler=cursors.list_topic_cursors,
        answers=_ok("Every cursor of the topic.", schema.Cursors),
        errors=(errors.BadTopicName, errors.TopicNotFound),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/cursors/{name}",
        operation="describeCursor",
        tag="Cursors",
        summary="Describe a cursor",
        handler=cursors.describe_cursor,
        answers=_ok("The cursor.", CursorDescription),
        errors=(errors.BadTopicName, *_CURSOR_ERRORS),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/cursors/{name}/messages",
        operation="readCursor",
        tag="Cursors",
        summary="Read what comes next",
        doc=(
            "The first read makes the cursor. A read that is not acknowledged gives the same messages again: "
            "at least once."
        ),
        handler=cursors.read_cursor,
        query=(read.MAX, read.MAX_BYTES, read.WAIT_MS, cursors.FROM, cursors.AUTO_ACK),
        answers=_ok("The next messages of all partitions, and what to acknowledge them with.", schema.CursorMessages),
        errors=(
            errors.BadTopicName,
            errors.BadCursorName,
            errors.BadValue,
            errors.TopicNotFound,
            errors.DamagedData,
            errors.CrossOrigin,
        ),
        changes_state=True,
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}/cursors/{name}/ack",
        operation="ackCursor",
        tag="Cursors",
        summary="Acknowledge messages",
        doc="Everything below the offset of a partition is done. A cursor never moves backwards this way.",
        handler=cursors.ack_cursor,
        bodies=(Content(shape=schema.Ack, example={"offsets": {"0": 1}}),),
        answers=_ok("The cursor as it stands now, durably.", CursorDescription),
        errors=(*_BODY_ERRORS, errors.BadTopicName, *_CURSOR_ERRORS, errors.PartitionNotFound),
    ),
    Route(
        method="PUT",
        path="/v1/topics/{topic}/cursors/{name}",
        operation="seekCursor",
        tag="Cursors",
        summary="Move a cursor anywhere",
        doc="To `earliest`, `latest`, an offset, or a time ago (`-10m`: s, m, h, d). A new name makes a cursor.",
        handler=cursors.seek_cursor,
        bodies=(Content(shape=schema.Seek, example={"to": "earliest"}),),
        answers=_ok("The cursor as it stands now, durably.", CursorDescription),
        errors=(*_BODY_ERRORS, errors.BadTopicName, *_CURSOR_ERRORS, errors.PartitionNotFound),
    ),
    Route(
        method="DELETE",
        path="/v1/topics/{topic}/cursors/{name}",
        operation="deleteCursor",
        tag="Cursors",
        summary="Forget a cursor",
        handler=cursors.delete_cursor,
        answers=(Answer(status=204, doc="It is gone."),),
        errors=(errors.BadTopicName, *_CURSOR_ERRORS, errors.CrossOrigin, errors.Unavailable),
    ),
)

_OPERATION: Final = (
    Route(
        method="GET",
        path="/health",
        operation="health",
        tag="Operation",
        summary="Liveness",
        doc="Answers while the process does; says nothing about the disk.",
        handler=health.health,
        answers=_ok("It does.", schema.Health),
    ),
    Route(
        method="GET",
        path="/ready",
        operation="ready",
        tag="Operation",
        summary="Readiness",
        doc="Whether publishes are taken, and if not, why.",
        handler=health.ready,
        answers=(
            *_ok("They are.", schema.Ready),
            Answer(status=503, doc="They are not, and why.", contents=(Content(shape=schema.Ready),)),
        ),
    ),
    Route(
        method="GET",
        path="/metrics",
        operation="metrics",
        tag="Operation",
        summary="Metrics",
        doc="JSON; Prometheus or OpenMetrics text where `Accept` ranks it higher.",
        handler=metrics.metrics,
        answers=(
            Answer(
                status=200,
                doc="All metrics as they are now.",
                contents=(
                    Content(shape=schema.Metrics),
                    Content(media_type=metrics.TEXT_TYPE),
                    Content(media_type=metrics.OPENMETRICS_TYPE),
                ),
            ),
        ),
    ),
    Route(
        method="GET",
        path="/v1/info",
        operation="info",
        tag="Operation",
        summary="About this node",
        handler=health.info,
        answers=_ok("Version, node, addresses, uptime.", schema.Info),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        operation="openapi",
        tag="Operation",
        summary="OpenAPI document",
        handler=openapi.openapi,
        answers=_ok("An OpenAPI 3.1 document.", dict[str, Any]),
    ),
    Route(
        method="GET",
        path="/docs",
        operation="docs",
        tag="Operation",
        summary="This page",
        handler=docs_page.docs,
        answers=(
            Answer(
                status=200,
                doc="A page that needs no network but this broker.",
                contents=(Content(media_type=docs_page.HTML_TYPE),),
            ),
        ),
    ),
)

ROUTES: Final = (*_TOPICS, *_PUBLISH, *_READ, *_CURSORS, *_OPERATION)

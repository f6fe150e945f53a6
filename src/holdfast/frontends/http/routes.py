"""The table of all calls: what the router finds, what `/openapi.json` says, what `/docs` shows."""

from __future__ import annotations

from typing import Final

from holdfast.frontends.http import batches, cursors, publish, read, schema, tail, topics
from holdfast.frontends.http.exchange import BATCHES_TYPE
from holdfast.frontends.http.routes_operation import CLUSTER, MEMBERS, OPERATION
from holdfast.frontends.http.routes_queue import QUEUE
from holdfast.frontends.http.routes_queues import QUEUES
from holdfast.frontends.http.routes_subscriptions import SUBSCRIPTIONS
from holdfast.frontends.http.routes_transactions import TRANSACTIONS
from holdfast.frontends.http.routing import BODY_ERRORS, Answer, Content, Route, ok
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
    errors.NoQuorum,
    errors.NotLeader,
    errors.LeaderChanged,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StorageFailed,
    errors.DiskFull,
)
# What is decided by a majority of the nodes can be without one.
_DECISION_ERRORS: Final = (errors.Unavailable, errors.NoQuorum, errors.LeaderChanged)
_READ_ERRORS: Final = (
    errors.BadValue,
    errors.TopicNotFound,
    errors.PartitionNotFound,
    errors.OffsetOutOfRange,
    errors.DamagedData,
    errors.NoQuorum,
    errors.Overloaded,
)
_CURSOR_ERRORS: Final = (errors.BadCursorName, errors.TopicNotFound, errors.CursorNotFound, errors.NoQuorum)


_STALE_HEADER: Final = ("Holdfast-Stale-Ms", "with `stale`: how many milliseconds ago nothing was missing here")

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
        errors=(*BODY_ERRORS, *_DECISION_ERRORS, errors.BadTopicName, errors.TopicExists, errors.TooManyTopics),
    ),
    Route(
        method="GET",
        path="/v1/topics",
        operation="listTopics",
        tag="Topics",
        summary="List all topics",
        handler=topics.list_topics,
        answers=ok("Every topic, by name.", schema.Topics),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}",
        operation="describeTopic",
        tag="Topics",
        summary="Describe a topic",
        handler=topics.describe_topic,
        answers=ok("The topic.", TopicDescription),
        errors=(errors.BadTopicName, errors.TopicNotFound, errors.NoQuorum),
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
        errors=(errors.BadTopicName, errors.TopicNotFound, errors.CrossOrigin, *_DECISION_ERRORS),
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
        answers=ok("Where each message stands, in the order of the request.", schema.PublishResults),
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
        answers=ok("Where each batch stands, in the order of the request.", schema.BatchResults),
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
            "message. In a cluster every node answers, and shows what was acknowledged by any of them before; with "
            "`stale` it shows what it has, also where it cannot reach the others."
        ),
        handler=read.read,
        query=(read.OFFSET, read.MAX, read.MAX_BYTES, read.WAIT_MS, read.STALE),
        answers=(
            Answer(
                status=200,
                doc="Messages, and where to go on.",
                contents=(Content(shape=schema.Messages), Content(media_type=BATCHES_TYPE)),
                headers=(
                    ("Holdfast-Next-Offset", "with batches: the offset to ask for next"),
                    ("Holdfast-Start-Offset", "with batches: the oldest offset of the partition"),
                    ("Holdfast-End-Offset", "with batches: the offset the next message will get"),
                    (
                        "Holdfast-Topic-Created-Ms",
                        "with batches: when the topic that they are of was made, which tells it from another of its "
                        "name; left out where the topic was made anew during the read",
                    ),
                    _STALE_HEADER,
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
        query=(read.TIMESTAMP, read.STALE),
        answers=(
            Answer(
                status=200,
                doc="The first message of that time or later; the end if there is none.",
                contents=(Content(shape=schema.OffsetAnswer),),
                headers=(_STALE_HEADER,),
            ),
        ),
        errors=(errors.BadTopicName, errors.BadValue, errors.TopicNotFound, errors.PartitionNotFound, errors.NoQuorum),
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
            "that expired or are damaged; `event: end` with an error means that the topic is gone. In a cluster it "
            "shows what this node has, as it comes; `stale` begins it without asking the others where the end is."
        ),
        handler=tail.tail,
        query=(tail.FROM, tail.PARTITION, read.STALE),
        request_headers=(("Last-Event-ID", "the id of the last event seen: the stream goes on behind it"),),
        answers=(
            Answer(
                status=200,
                doc="Events until one side closes the connection.",
                contents=(Content(media_type=tail.EVENT_STREAM_TYPE),),
                headers=(_STALE_HEADER,),
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
        answers=ok("Every cursor of every topic.", schema.Cursors),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/cursors",
        operation="listTopicCursors",
        tag="Cursors",
        summary="List the cursors of a topic",
        handler=cursors.list_topic_cursors,
        answers=ok("Every cursor of the topic.", schema.Cursors),
        errors=(errors.BadTopicName, errors.TopicNotFound, errors.NoQuorum),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/cursors/{name}",
        operation="describeCursor",
        tag="Cursors",
        summary="Describe a cursor",
        handler=cursors.describe_cursor,
        answers=ok("The cursor.", CursorDescription),
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
        answers=ok("The next messages of all partitions, and what to acknowledge them with.", schema.CursorMessages),
        errors=(
            errors.BadTopicName,
            errors.BadCursorName,
            errors.BadValue,
            errors.TopicNotFound,
            errors.DamagedData,
            errors.Overloaded,
            errors.CrossOrigin,
            *_DECISION_ERRORS,
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
        answers=ok("The cursor as it stands now, durably.", CursorDescription),
        errors=(*BODY_ERRORS, *_DECISION_ERRORS, errors.BadTopicName, *_CURSOR_ERRORS, errors.PartitionNotFound),
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
        answers=ok("The cursor as it stands now, durably.", CursorDescription),
        errors=(*BODY_ERRORS, *_DECISION_ERRORS, errors.BadTopicName, *_CURSOR_ERRORS, errors.PartitionNotFound),
    ),
    Route(
        method="DELETE",
        path="/v1/topics/{topic}/cursors/{name}",
        operation="deleteCursor",
        tag="Cursors",
        summary="Forget a cursor",
        handler=cursors.delete_cursor,
        answers=(Answer(status=204, doc="It is gone."),),
        errors=(errors.BadTopicName, *_CURSOR_ERRORS, errors.CrossOrigin, *_DECISION_ERRORS),
    ),
)

ROUTES: Final = (
    *_TOPICS,
    *_PUBLISH,
    *_READ,
    *_CURSORS,
    *SUBSCRIPTIONS,
    *QUEUE,
    *QUEUES,
    *TRANSACTIONS,
    *CLUSTER,
    *MEMBERS,
    *OPERATION,
)

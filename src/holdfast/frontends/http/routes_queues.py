"""Numbered queues: one value in, the next one out, and what their brokers and tools ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast.frontends.http import queue_brokers, queue_calls, queue_lists
from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.exchange import Request, Response
from holdfast.frontends.http.routing import BODY_ERRORS, Answer, Content, Route, ok
from holdfast.frontends.http.services import Services
from holdfast.model import errors

_DECISION_ERRORS: Final = (errors.NoQuorum, errors.LeaderChanged, errors.ShuttingDown)
_QUEUE_ERRORS: Final = (*BODY_ERRORS, *_DECISION_ERRORS, errors.QueueNotFound, errors.NotAQueue)


def _route(
    path: str,
    operation: str,
    summary: str,
    handler: Callable[[Services, Request], Awaitable[Response]],
    body: Any,
    answers: tuple[Answer, ...],
    *,
    doc: str = "",
    example: dict[str, Any] | None = None,
    raised: tuple[type[errors.HoldfastError], ...] = BODY_ERRORS,
) -> Route:
    shown = None if errors.ReplacedByConsensus in raised else example or {}
    return Route(
        method="POST",
        path=path,
        operation=operation,
        tag="Numbered queues",
        summary=summary,
        doc=doc,
        handler=handler,
        bodies=(Content(shape=body, example=shown),),
        answers=answers,
        errors=raised,
    )


_REPLACED: Final = (*BODY_ERRORS, errors.ReplacedByConsensus)
_REPLACED_DOC: Final = "Always refused: nodes replicate by consensus, and nothing may be written past it."
_NEVER: Final = ()

QUEUES: Final = (
    Route(
        method="GET",
        path="/v1/queues",
        operation="nextQueue",
        tag="Numbered queues",
        summary="The number that the next queue gets",
        doc="A number is given once, also where its queue was deleted: backups keep it.",
        handler=queue_lists.next_queue,
        answers=ok("Nothing is changed.", schema.NextQueue),
        errors=(errors.NoQuorum,),
    ),
    _route(
        "/create_queue",
        "createQueue",
        "Create a queue",
        queue_calls.create_queue,
        schema.CreateQueue,
        ok("Its number: one more than the last.", schema.CreatedQueue),
        doc="Queue 7 is the topic `queue-7`, with one partition.",
        raised=(*BODY_ERRORS, *_DECISION_ERRORS, errors.TooManyTopics, errors.RequestOutdated, errors.DiskFull),
    ),
    _route(
        "/append",
        "appendToQueue",
        "Append a value to a queue",
        queue_calls.append,
        schema.Append,
        ok("It is durable.", schema.Appended),
        doc="With an `id`, a value that is appended again is stored once.",
        example={"queue_id": 1, "value": 42},
        raised=(*_QUEUE_ERRORS, errors.BadMessageId, errors.NotLeader, errors.StorageFailed, errors.DiskFull),
    ),
    _route(
        "/read",
        "readFromQueue",
        "Read the next message for a client",
        queue_calls.read,
        schema.Read,
        ok("The next message, or nulls.", schema.QueueMessage),
        doc=(
            "The client's pointer is moved, durably, before the message is handed out: readers who share a client id "
            "never get the same one, through whichever nodes. With a `request_id`, a read that is sent again gets the "
            "same message again."
        ),
        example={"queue_id": 1, "client_id": "worker"},
        raised=(*_QUEUE_ERRORS, errors.RequestOutdated, errors.OffsetOutOfRange, errors.DamagedData),
    ),
    _route(
        "/get_all_queues",
        "getAllQueues",
        "List all queues",
        queue_lists.get_all_queues,
        schema.QueuesWanted,
        ok("Their numbers.", schema.Queues),
        raised=(*BODY_ERRORS, errors.NoQuorum),
    ),
    _route(
        "/get_all_messages",
        "getAllMessages",
        "List the messages of all queues",
        queue_lists.get_all_messages,
        schema.MessagesWanted,
        ok("By queue and message.", schema.QueueMessages),
        doc="Without a `limit` all of them, written while they are read.",
        raised=(*BODY_ERRORS, errors.NoQuorum, errors.QueueNotFound, errors.NotAQueue),
    ),
    _route(
        "/get_all_pointers",
        "getAllPointers",
        "List how far all clients have read",
        queue_lists.get_all_pointers,
        schema.PointersWanted,
        ok("By queue and client.", schema.Pointers),
        raised=(*BODY_ERRORS, errors.NoQuorum),
    ),
    _route(
        "/broker_info",
        "brokerInfo",
        "The node that answers, and who leads",
        queue_brokers.broker_info,
        schema.Nothing,
        ok("One node of a cluster leads.", schema.BrokerInfo),
    ),
    _route(
        "/heartbeat",
        "heartbeat",
        "Understood, and changes nothing",
        queue_brokers.heartbeat,
        schema.Heartbeat,
        ok("What is done instead.", schema.Accepted),
        example={"leader_id": 1, "leader_url": "http://127.0.0.1:8001"},
    ),
    _route(
        "/set_follower_urls",
        "setFollowerUrls",
        "Understood, and changes nothing",
        queue_brokers.set_follower_urls,
        schema.FollowerUrls,
        ok("What is done instead.", schema.Accepted),
        example={"follower_urls": ["http://127.0.0.1:8002"]},
    ),
    _route(
        "/set_peer_urls",
        "setPeerUrls",
        "Understood, and changes nothing",
        queue_brokers.set_peer_urls,
        schema.PeerUrls,
        ok("What is done instead.", schema.Accepted),
        example={"peer_urls": ["http://127.0.0.1:8002"]},
    ),
    _route(
        "/apply_create_queue",
        "applyCreateQueue",
        "Refused: use /create_queue",
        queue_brokers.apply_create_queue,
        schema.ApplyCreateQueue,
        _NEVER,
        doc=_REPLACED_DOC,
        raised=_REPLACED,
    ),
    _route(
        "/apply_append",
        "applyAppend",
        "Refused: use /append",
        queue_brokers.apply_append,
        schema.ApplyAppend,
        _NEVER,
        doc=_REPLACED_DOC,
        raised=_REPLACED,
    ),
    _route(
        "/apply_set_pointer",
        "applySetPointer",
        "Refused: use /read",
        queue_brokers.apply_set_pointer,
        schema.ApplySetPointer,
        _NEVER,
        doc=_REPLACED_DOC,
        raised=_REPLACED,
    ),
)

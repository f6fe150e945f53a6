"""Messages in, as Queen's clients send them: `POST /api/v1/push`.

Items of a request may go to any queues and partitions. They are checked here, all of them before the first is stored,
and then gathered with those of other requests (`pushing.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.broker.broker import Broker
from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import error_body, error_response
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_text
from holdfast.frontends.http.push_columns import Columns, Outcomes
from holdfast.frontends.http.push_words import push_error, wrong_text
from holdfast.frontends.http.services import Services
from holdfast.model import names
from holdfast.model.errors import BadTopicName, HoldfastError, Internal, TooLarge, TopicNotFound
from holdfast.model.ids import TopicName
from holdfast.model.limits import MESSAGE_ID_BYTES_MAX, MESSAGES_PER_BATCH_MAX

_decoder: Final = msgspec.json.Decoder(schema.Push)
_encode: Final = msgspec.json.Encoder().encode

# So many characters cannot have more bytes than are allowed, whatever they are.
_SHORT_CHARACTERS: Final = MESSAGE_ID_BYTES_MAX // 4


async def push(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    body = await services.body_of(request)
    return await answer(services, body)


async def answer(services: Services, body: bytes) -> Response:
    """Push what a body holds."""
    columns, may_be_lost = checked_push(services.broker, body)
    await services.turn(len(body))
    outcomes = await services.pushes.push(columns, len(body), may_be_lost=may_be_lost)
    await services.turn(len(body))
    return response_of(outcomes)


def begin_push(
    services: Services, body: bytes
) -> tuple[asyncio.Future[Outcomes], Callable[[Outcomes], Response]] | None:
    """Push what a body holds, if it is for one queue."""
    columns, may_be_lost = checked_push(services.broker, body)
    if len(set(columns.queues)) != 1:
        return None
    return services.pushes.gather(columns.queues[0], columns, len(body), may_be_lost=may_be_lost), response_of


def checked_push(broker: Broker, body: bytes) -> tuple[Columns, bool]:
    """What a body asks for, each item looked at, and whether it may be lost.

    Raises what is wrong with the first that is wrong, and names it.
    """
    try:
        push = _decoder.decode(body)
        # A payload is kept as it came, and only its structure was looked at.
        body.decode()
    except (ValueError, RecursionError) as error:
        raise push_error(error, body) from None
    if len(push.items) > MESSAGES_PER_BATCH_MAX:
        raise TooLarge(f"items: {len(push.items)} at once; send at most {MESSAGES_PER_BATCH_MAX} in one request")
    columns = Columns.of(push.items)
    for queue in set(columns.queues):
        _check_queue(broker, queue, columns)
    _check_texts(set(filter(None, set(columns.names))), columns.names, "partition")
    _check_texts(list(filter(None, columns.transaction_ids)), columns.transaction_ids, "transactionId")
    _check_texts(list(filter(None, columns.trace_ids)), columns.trace_ids, "traceId")
    _check_texts(set(filter(None, columns.namespaces)), columns.namespaces, "namespace")
    _check_texts(set(filter(None, columns.tasks)), columns.tasks, "task")
    if len(body) > broker.message_bytes_max:
        _check_payloads(columns.payloads, broker.message_bytes_max)
    return columns, push.may_be_lost


def _check_queue(broker: Broker, queue: str, columns: Columns) -> None:
    if broker.backend.topic(TopicName(queue)) is not None and not names.is_internal(queue):
        return
    index = columns.queues.index(queue)
    try:
        names.topic_name(queue)
    except BadTopicName as error:
        words = error.message.replace("the topic name", "the queue's name")
        raise BadTopicName(f"items[{index}].queue: {words}") from None
    if not broker.auto_create:
        raise TopicNotFound(f"items[{index}].queue: there is no queue {queue}; create it first (auto-create is off)")


def _check_texts(texts: Collection[str], column: Sequence[str | None], field: str) -> None:
    """Names and ids stand in headers, columns and URLs: printable, and not longer than an id. Empty is absent."""
    if not texts or (_is_printable("".join(texts)) and max(map(len, texts)) <= _SHORT_CHARACTERS):
        return
    for index, text in enumerate(column):
        if text and (not text.isprintable() or len(text.encode()) > MESSAGE_ID_BYTES_MAX):
            raise wrong_text(f"items[{index}].{field}", text)


def _is_printable(text: str) -> bool:
    """As `str.isprintable`, which looks at one character after the other: what JSON need not escape is known sooner."""
    is_plain = text.isascii() and "\x7f" not in text and len(_encode(text)) == len(text) + 2
    return is_plain or text.isprintable()


def _check_payloads(payloads: Sequence[Raw], bytes_max: int) -> None:
    for index, payload in enumerate(payloads):
        size = len(bytes(payload))
        if size > bytes_max:
            raise TooLarge(f"items[{index}].payload: it has {size} bytes; at most {bytes_max} are allowed")


def response_of(outcomes: Outcomes) -> Response:
    """201 where everything is kept. Else the status of what went wrong, and each item's own fate in the body."""
    if not outcomes.errors:
        return json_text(outcomes.text(), 201)
    known = {
        index: error if isinstance(error, HoldfastError) else _unknown(error)
        for index, error in sorted(outcomes.errors.items())
    }
    first = next(iter(known.values()))
    if len(known) == len(outcomes.statuses):
        raise first
    results = [schema.PushResult(index, *row) for index, row in enumerate(zip(*outcomes[:3], strict=True))]
    for index, error in known.items():
        described: dict[str, Any] = error_body(error)["error"]
        results[index] = msgspec.structs.replace(results[index], error=schema.ErrorDescription(**described))
    response = error_response(first)
    response.body = _encode(results)
    return response


def _unknown(error: BaseException) -> HoldfastError:
    return Internal(f"the broker failed to store this: {type(error).__name__}")

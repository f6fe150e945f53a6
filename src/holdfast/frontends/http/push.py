"""Messages in, as Queen's clients send them: `POST /api/v1/push`.

Items of a request may go to any queues and partitions. They are checked here, all of them before the first is stored,
and then gathered with those of other requests (`pushing.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from holdfast.broker.broker import Broker
from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import body_error, error_body, error_response
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_text
from holdfast.frontends.http.params import shown
from holdfast.frontends.http.pushing import Outcome
from holdfast.frontends.http.services import Services
from holdfast.model import names
from holdfast.model.errors import BadTopicName, BadValue, HoldfastError, Internal, TooLarge, TopicNotFound
from holdfast.model.ids import TopicName
from holdfast.model.limits import MESSAGE_ID_BYTES_MAX, MESSAGES_PER_BATCH_MAX

_decoder: Final = msgspec.json.Decoder(schema.Push)
_encode: Final = msgspec.json.Encoder().encode

# So many characters cannot have more bytes than are allowed, whatever they are.
_SHORT_CHARACTERS: Final = MESSAGE_ID_BYTES_MAX // 4


async def push(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    body = await request.body()
    return await answer(services, body)


async def answer(services: Services, body: bytes) -> Response:
    """Push what a body holds."""
    checked = checked_push(services.broker, body)
    outcomes = await services.pushes.push(checked.items, len(body), may_be_lost=checked.may_be_lost)
    return response_of(outcomes)


def checked_push(broker: Broker, body: bytes) -> schema.Push:
    """What a body asks for, each item looked at. Raises what is wrong with the first that is wrong, and names it."""
    try:
        push = _decoder.decode(body)
        # A payload is kept as it came, and only its structure was looked at.
        body.decode()
    except (ValueError, RecursionError) as error:
        raise body_error(error, body) from None
    items = push.items
    if len(items) > MESSAGES_PER_BATCH_MAX:
        raise TooLarge(f"{len(items)} items at once; send at most {MESSAGES_PER_BATCH_MAX} in one request")
    for queue in {item.queue for item in items}:
        _check_queue(broker, queue, items)
    _check_texts({item.partition for item in items if item.partition is not None}, items, "partition")
    _check_texts([item.transactionId for item in items if item.transactionId], items, "transactionId")
    _check_texts([item.traceId for item in items if item.traceId], items, "traceId")
    if len(body) > broker.message_bytes_max:
        _check_payloads(items, broker.message_bytes_max)
    return push


def _check_queue(broker: Broker, queue: str, items: Sequence[schema.PushItem]) -> None:
    if broker.backend.topic(TopicName(queue)) is not None:
        return
    index = next(index for index, item in enumerate(items) if item.queue == queue)
    try:
        names.topic_name(queue)
    except BadTopicName as error:
        raise BadTopicName(f"items[{index}].queue: {error.message}") from None
    if not broker.auto_create:
        raise TopicNotFound(f"items[{index}].queue: there is no queue {queue}; create it first (auto-create is off)")


def _check_texts(texts: Collection[str], items: Sequence[schema.PushItem], field: str) -> None:
    """Names and ids stand in headers, columns and URLs: printable, and not longer than an id."""
    if not texts or (
        "".join(texts).isprintable() and 0 < min(map(len, texts)) <= max(map(len, texts)) <= _SHORT_CHARACTERS
    ):
        return
    for index, item in enumerate(items):
        text = getattr(item, field)
        if text is None or (not text and field != "partition"):
            continue
        if not text.isprintable() or not 0 < len(text.encode()) <= MESSAGE_ID_BYTES_MAX:
            raise BadValue(
                f"items[{index}].{field}: write 1 to {MESSAGE_ID_BYTES_MAX} printable bytes, not {shown(text)}"
            )


def _check_payloads(items: Sequence[schema.PushItem], bytes_max: int) -> None:
    for index, item in enumerate(items):
        size = len(bytes(item.payload))
        if size > bytes_max:
            raise TooLarge(f"items[{index}].payload has {size} bytes; at most {bytes_max} are allowed")


def response_of(outcomes: Sequence[Outcome]) -> Response:
    """201 where everything is kept. Else the status of what went wrong, and each item's own fate in the body."""
    results = [
        schema.PushResult(index, transaction_id, message_id, status)
        for index, (transaction_id, message_id, status, _) in enumerate(outcomes)
    ]
    failures = [(index, outcome.error) for index, outcome in enumerate(outcomes) if outcome.error is not None]
    if not failures:
        return json_text(_encode(results), 201)
    known = [error if isinstance(error, HoldfastError) else _unknown(error) for _, error in failures]
    if len(failures) == len(outcomes):
        raise known[0]
    for (index, _), error in zip(failures, known, strict=True):
        described: dict[str, Any] = error_body(error)["error"]
        results[index] = msgspec.structs.replace(results[index], error=schema.ErrorDescription(**described))
    response = error_response(known[0])
    response.body = _encode(results)
    return response


def _unknown(error: BaseException | None) -> HoldfastError:
    return Internal(f"the broker failed to store this: {type(error).__name__}")

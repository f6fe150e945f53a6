"""Messages out, as Queen's clients take them: `GET /api/v1/pop/queue/{queue}`, with or without a partition.

Only with `autoAck=true`: what is answered was taken before, durably, and nobody gets it again. An answer that is lost
takes its messages with it. Leases, where a message comes back unless it is acknowledged, are for later; until then a
pop without `autoAck` is refused, and never quietly something else. A queue that nobody has pushed to is empty; to look
into it does not make it.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from holdfast.broker.popping import Popped, checked_group, name_of
from holdfast.frontends.http import schema
from holdfast.frontends.http.exchange import Request, Response, json_response, no_content
from holdfast.frontends.http.params import FlagParam, IntParam, OptionalTextParam
from holdfast.frontends.http.services import Services, Woken
from holdfast.model.errors import NotSupported, TopicNotFound
from holdfast.model.limits import HTTP_READ_BYTES_MAX, HTTP_READ_MESSAGES_MAX, LONG_POLL_MS_MAX
from holdfast.model.messages import StoredMessage
from holdfast.wire.push_batch import NAMESPACE_HEADER, TASK_HEADER, TRACE_HEADER, TRANSACTION_HEADER

BATCH: Final = IntParam(
    name="batch", default=1, minimum=1, maximum=HTTP_READ_MESSAGES_MAX, doc="how many messages at most"
)
WAIT: Final = FlagParam(name="wait", doc="wait for the first message if there is none")
TIMEOUT: Final = IntParam(
    name="timeout",
    default=30_000,
    minimum=0,
    maximum=LONG_POLL_MS_MAX,
    doc="with `wait`: for so many milliseconds",
)
GROUP: Final = OptionalTextParam(
    name="consumerGroup", doc="each group gets every message once; without one, all who name none are one", example="g"
)
AUTO_ACK: Final = FlagParam(name="autoAck", doc="must be true: messages are done as soon as they are handed out")
PARAMS: Final = (BATCH, WAIT, TIMEOUT, GROUP, AUTO_ACK)

DEFAULT_GROUP: Final = "__QUEUE_MODE__"

_is_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def pop(services: Services, request: Request) -> Response:
    queue, name = request.params[0], request.params[1] if len(request.params) > 1 else None
    if not AUTO_ACK.of(request.query):
        raise NotSupported("a pop without autoAck=true needs leases and acks, which this broker does not have yet")
    group = checked_group(GROUP.of(request.query) or DEFAULT_GROUP)
    batch = BATCH.of(request.query)
    loop = asyncio.get_running_loop()
    wait_s = TIMEOUT.of(request.query) / 1000 if WAIT.of(request.query) else 0.0
    deadline_s = loop.time() + wait_s
    broker = services.broker
    source = services.delivers_from(queue)
    popped: Popped | None = None
    if not await broker.pops.is_there(source):
        # A name that nobody has pushed to is an empty queue: whoever looks into it makes nothing.
        if not broker.auto_create:
            raise TopicNotFound(f"there is no queue {queue}; create it first (auto-create is off)")
        if wait_s <= 0 or await services.wait_for_topic(request, source, wait_s) is not Woken.DATA:
            return no_content()
    while True:
        async with services.room(HTTP_READ_BYTES_MAX) as room:
            popped = await broker.pop(
                queue,
                group,
                name,
                messages_max=batch,
                bytes_max=room.bytes_max,
                before=popped,
                before_taking=room.wait_for,
            )
        if popped.messages:
            broker.stats.count_delivery(len(popped.messages), sum(len(each.value) for each in popped.messages))
            return json_response(_answer(queue, name, popped.messages))
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            return no_content()
        if await services.wait(request, source, popped.looked_at, left_s) is not Woken.DATA:
            return no_content()


def _answer(queue: str, name: str | None, messages: list[StoredMessage]) -> schema.Pop:
    shown = [_message(message) for message in messages]
    found = {each.partition for each in shown}
    one = name if name is not None else found.pop() if len(found) == 1 else None
    return schema.Pop(success=True, queue=queue, partition=one, messages=shown)


def _message(stored: StoredMessage) -> schema.PopMessage:
    headers = dict(reversed(stored.headers))
    created = _EPOCH + timedelta(milliseconds=min(max(stored.timestamp_ms, _MS_MIN), _MS_MAX))
    data, encoding = _data(stored.value)
    return schema.PopMessage(
        id=stored.id,
        transactionId=_text(headers.get(TRANSACTION_HEADER)) or stored.id,
        partition=name_of(stored),
        data=data,
        encoding=encoding,
        createdAt=created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        traceId=_text(headers.get(TRACE_HEADER)),
        namespace=_text(headers.get(NAMESPACE_HEADER)) or msgspec.UNSET,
        task=_text(headers.get(TASK_HEADER)) or msgspec.UNSET,
    )


# The years 1 to 9999: a sender's clock can say anything.
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")


def _data(value: bytes) -> tuple[msgspec.Raw | str | bytes, str | msgspec.UnsetType]:
    """A value as JSON: as it is where it is JSON, else as text, else as base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value, "base64"
    try:
        _is_json(value)
    except (ValueError, RecursionError):
        return text, msgspec.UNSET
    return msgspec.Raw(value), msgspec.UNSET

"""Messages in: `POST /v1/topics/{topic}/messages`.

The hot road. A request whose messages are nothing but text is decoded by a type that knows nothing
else, so no message needs a look in Python: one pass encodes the values, the broker makes one batch of
them, and the answer is joined from a table, because consecutive offsets differ in their last digits
only. Everything else takes the general road, message by message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import body_error, decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response, json_text
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadValue
from holdfast.model.ids import NO_OFFSET
from holdfast.model.messages import NewMessage, Published
from holdfast.model.pauses import in_parts
from holdfast.wire.record_batch import ID_HEADER

T = TypeVar("T")

_plain_decoder: Final = msgspec.json.Decoder(schema.PublishPlain)
_decoder: Final = msgspec.json.Decoder(schema.Publish)

_BLOCK: Final = 1000
_SMALL: Final = [str(number) for number in range(_BLOCK)]
_LAST_DIGITS: Final = [f"{number:03d}" for number in range(_BLOCK)]


async def publish(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    body = await services.body_of(request)
    topic = request.params[0]
    try:
        plain = _plain_decoder.decode(body)
    except msgspec.ValidationError:
        return await _publish_general(services, topic, body)
    except (ValueError, RecursionError) as error:
        raise body_error(error, body) from None
    values = [message.value.encode() for message in plain.messages]
    if services.on_publish is not None:
        services.on_publish(topic, len(values))
    publishing = services.broker.publish_values(topic, values)
    offset = await finished(publishing.offset)
    return json_text(results_of_run(publishing.partition, offset, len(values)))


async def _publish_general(services: Services, topic: str, body: bytes) -> Response:
    decoded_messages = decoded(_decoder, body).messages
    messages: list[NewMessage] = []
    for part in in_parts(decoded_messages):
        await services.turn(len(body))
        messages += [_new_message(message, index, body) for index, message in enumerate(part, len(messages))]
    partition = _partition_of(decoded_messages)
    await services.turn(len(body))
    if services.on_publish is not None:
        services.on_publish(topic, len(messages))
    published = await finished(services.broker.publish_large(topic, messages, partition))
    await services.turn(len(body))
    if any(each.buffered for each in published):
        return json_response({"results": list(map(_buffered_result, published))})
    # The broker's own results have the very fields of `schema.PublishResult`.
    return json_response({"results": published})


def _buffered_result(published: Published) -> schema.PublishResult:
    return schema.PublishResult(
        partition=published.partition,
        offset=published.offset,
        duplicate=published.duplicate,
        buffered=published.buffered or msgspec.UNSET,
    )


def messages_of(body: bytes) -> tuple[list[NewMessage], int | None]:
    """The messages of a request that may have keys, ids and headers, and the partition that they name."""
    messages = decoded(_decoder, body).messages
    return [_new_message(message, index, body) for index, message in enumerate(messages)], _partition_of(messages)


def _partition_of(messages: Sequence[schema.PublishMessage]) -> int | None:
    """The partition that a request names, if it names one."""
    named = {message.partition for message in messages}
    if len(named) > 1:
        raise BadValue("partition: the messages of one request name the same partition, or none of them names one")
    return named.pop() if named else None


def _new_message(message: schema.PublishMessage, index: int, body: bytes) -> NewMessage:
    given = [field for field in ("value", "json", "base64") if getattr(message, field) is not msgspec.UNSET]
    if len(given) != 1:
        said = " and ".join(given) if given else "none"
        raise BadValue(f"messages[{index}]: give exactly one of value, json and base64, not {said}")
    if message.headers and ID_HEADER in message.headers:
        raise BadValue(f"messages[{index}].headers: {ID_HEADER} is where the id is stored; give it as id")
    return NewMessage(
        value=_value(message, body),
        key=None if message.key is None else message.key.encode(),
        id=message.id,
        headers=[(name, text.encode()) for name, text in message.headers.items()] if message.headers else (),
    )


def _value(message: schema.PublishMessage, body: bytes) -> bytes:
    if message.value is not msgspec.UNSET:
        return message.value.encode()
    if message.base64 is not msgspec.UNSET:
        return message.base64
    assert message.json is not msgspec.UNSET
    try:
        # The text as it was sent, less its blanks: decoding it would round its numbers.
        text = msgspec.json.format(bytes(message.json), indent=-1)
        text.decode()
    except (ValueError, RecursionError) as error:
        raise body_error(error, body) from None
    return text


def results_of_run(partition: int, offset: int, count: int) -> bytes:
    """The answer for `count` new messages of one partition from `offset` on."""
    if offset == NO_OFFSET:
        each = f'{{"partition":{partition},"offset":{NO_OFFSET},"duplicate":false,"buffered":true}}'
        return f'{{"results":[{",".join([each] * count)}]}}'.encode()
    between = f',"duplicate":false}},{{"partition":{partition},"offset":'
    blocks = []
    end = offset + count
    while offset < end:
        block, first = divmod(offset, _BLOCK)
        last = min(_BLOCK, first + end - offset)
        if block:
            blocks.append(f"{block}{(between + str(block)).join(_LAST_DIGITS[first:last])}")
        else:
            blocks.append(between.join(_SMALL[first:last]))
        offset += last - first
    run = between.join(blocks)
    return f'{{"results":[{{"partition":{partition},"offset":{run},"duplicate":false}}]}}'.encode()


async def finished(future: asyncio.Future[T]) -> T:
    """The result of a publish. A request that is given up must not take the publish with it."""
    if future.done():
        return future.result()
    return await asyncio.shield(future)

"""The queue interface through a proxy: each queue is in one group, which follows from its id alone.

A queue's id here is its number in its group times 1024, and the group's slot, which follows from the group's name. So
no proxy has to remember anything, and one more group changes no id. Every call gets an id where its client gave none:
what is sent again, because nobody knows what became of it, is stored once, and reads the same message.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from holdfast.broker.queue_names import QUEUE_ID_MAX
from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.errors import body_error
from holdfast.frontends.http.exchange import NO_STORE, Response, json_response
from holdfast.frontends.http.short_way import Begun
from holdfast.model.errors import NotReplicable, QueueNotFound, TooManyTopics
from holdfast.proxy.groups import Group
from holdfast.proxy.readers import Pointer, Readers
from holdfast.proxy.settings import SLOTS
from holdfast.proxy.upstream import Answer


class _Error(msgspec.Struct):
    code: str


class _Failed(msgspec.Struct):
    error: _Error


_decode_append: Final = msgspec.json.Decoder(schema.Append).decode
_decode_read: Final = msgspec.json.Decoder(schema.Read).decode
_decode_create: Final = msgspec.json.Decoder(schema.CreateQueue).decode
_decode_appended: Final = msgspec.json.Decoder(schema.Appended).decode
_decode_created: Final = msgspec.json.Decoder(schema.CreatedQueue).decode
_decode_failed: Final = msgspec.json.Decoder(_Failed).decode
_encode: Final = msgspec.json.Encoder().encode

_BAD_REQUEST: Final = 400
# Above it, ids would be more than readers of JSON keep.
NUMBER_MAX: Final = QUEUE_ID_MAX // SLOTS

_KEPT_HEADERS: Final = frozenset((b"content-type", b"retry-after"))


class QueueCalls:
    """Append, read and create, each to the group that it is for."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._by_slot = {group.slot: group for group in groups}
        self._readers = Readers()
        self._prefix = uuid.uuid4().hex
        self._appends = itertools.count(1)
        self._turn = 0

    def place_of(self, queue_id: int) -> tuple[Group, int]:
        """The group that has a queue, and its number there. Raises `QueueNotFound`."""
        number, slot = divmod(queue_id, SLOTS)
        group = self._by_slot.get(slot)
        if group is None or number < 1:
            raise QueueNotFound(f"no group of this proxy has a queue {queue_id}; POST /create_queue makes one")
        return group, number

    # --- the short way: see `frontends.http.short_way` --------------------------------------------------

    def begin_append(self, body: bytes) -> Begun:
        try:
            wanted = _decode_append(body)
            body.decode()
        except (ValueError, RecursionError) as error:
            raise body_error(error, body) from None
        group, number = self.place_of(wanted.queue_id)
        message_id = wanted.id if wanted.id is not None else f"{self._prefix}-{next(self._appends)}"
        told = b'{"queue_id":%d,"value":%b,"id":%b}' % (number, wanted.value, _encode(message_id))
        answered = _passed_on if wanted.id is not None else _appended_once
        return group.begin(b"/append", told), partial(answered, wanted.queue_id)

    def begin_read(self, body: bytes) -> Begun:
        try:
            wanted = _decode_read(body)
        except (ValueError, RecursionError) as error:
            raise body_error(error, body) from None
        group, number = self.place_of(wanted.queue_id)
        answer = partial(_passed_on, wanted.queue_id)
        if wanted.request_id is not None:
            return group.begin(b"/read", _told(number, wanted.client_id, wanted.request_id)), answer
        pointer = (wanted.queue_id, wanted.client_id)
        reader = self._readers.take(pointer)
        if reader is None:
            return asyncio.get_running_loop().create_task(self._read_in_turn(group, number, pointer)), answer
        return self._begin_read(group, number, pointer, reader), answer

    def _begin_read(self, group: Group, number: int, pointer: Pointer, reader: str) -> asyncio.Future[Answer]:
        answered = group.begin(b"/read", _told(number, pointer[1], self._readers.request_id(reader)))
        answered.add_done_callback(lambda _: self._readers.give_back(pointer, reader))
        return answered

    async def _read_in_turn(self, group: Group, number: int, pointer: Pointer) -> Answer:
        reader = await self._readers.wait(pointer, group.patience_s)
        return await self._begin_read(group, number, pointer, reader)

    # --- creating -----------------------------------------------------------------------------------

    async def create(self, body: bytes) -> Response:
        """In the next group that is well; which one that is follows from the id, where the client gives one."""
        try:
            wanted = _decode_create(body)
        except (ValueError, RecursionError) as error:
            raise body_error(error, body) from None
        if wanted.request_id is not None:
            # Sent again through another proxy, it has to reach the same group.
            group = max(self._groups, key=lambda each: each.weight(f"create\n{wanted.request_id}"))
            return self._created(group, await group.call(b"/create_queue", body))
        self._turn += 1
        count = len(self._groups)
        rotated = [self._groups[(self._turn + place) % count] for place in range(count)]
        group = sorted(rotated, key=lambda each: not each.is_up)[0]
        numbers = (0, group.name)
        reader = await self._readers.wait(numbers, group.patience_s)
        try:
            told = _encode({"request_id": self._readers.request_id(reader)})
            answer = await group.call(b"/create_queue", told)
        finally:
            self._readers.give_back(numbers, reader)
        if answer.status == _BAD_REQUEST and _code(answer) == NotReplicable.code:
            # A plain pair keeps no ids. What is sent twice there makes a queue that nobody knows of, and no harm.
            answer = await group.call(b"/create_queue", b"{}")
        return self._created(group, answer)

    def _created(self, group: Group, answer: Answer) -> Response:
        if answer.status != 200:
            return response_of(answer)
        number = _decode_created(answer.body).queue_id
        if number > NUMBER_MAX:
            raise TooManyTopics(f"group {group.name} has given all numbers that a proxy can pass on")
        return response_of(answer._replace(body=b'{"queue_id":%d}' % (number * SLOTS + group.slot)))


def _told(number: int, client_id: str, request_id: str) -> bytes:
    return b'{"queue_id":%d,"client_id":%b,"request_id":%b}' % (number, _encode(client_id), _encode(request_id))


def _code(answer: Answer) -> str | None:
    """The code of an error."""
    try:
        return _decode_failed(answer.body).error.code
    except msgspec.MsgspecError:
        return None


def response_of(answer: Answer) -> Response:
    """A node's answer, as it is."""
    headers = [field for field in answer.headers if field[0] in _KEPT_HEADERS]
    return Response(answer.status, [*headers, NO_STORE], answer.body)


def _appended_once(queue_id: int, answer: Answer) -> Response:
    """The answer to a value without an id, which the client sent once: it was there before only if we sent it again."""
    if answer.status == 200 and b'"duplicate":true' in answer.body:
        appended = _decode_appended(answer.body)
        return json_response(msgspec.structs.replace(appended, duplicate=False))
    return _passed_on(queue_id, answer)


def _passed_on(queue_id: int, answer: Answer) -> Response:
    if answer.status == 404:
        # The broker calls it by another number.
        raise QueueNotFound(f"there is no queue {queue_id}; POST /create_queue makes one and answers with its id")
    return response_of(answer)

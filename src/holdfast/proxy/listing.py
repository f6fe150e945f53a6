"""Listings over all groups: read page by page, with the ids that queues have here; a page at a time is in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, NO_STORE, Response, json_response, json_text
from holdfast.model.errors import NoGroupAnswers
from holdfast.proxy.groups import Group
from holdfast.proxy.queues import NUMBER_MAX, QueueCalls
from holdfast.proxy.settings import SLOTS
from holdfast.proxy.upstream import Answer

_PAGE: Final = 1000

_queues_decoder: Final = msgspec.json.Decoder(schema.QueuesWanted)
_messages_decoder: Final = msgspec.json.Decoder(schema.MessagesWanted)
_pointers_decoder: Final = msgspec.json.Decoder(schema.PointersWanted)
_encode: Final = msgspec.json.Encoder().encode


class _Message(Struct):
    message_id: int
    queue_id: int
    value: Raw
    encoding: str | UnsetType = UNSET


class _Messages(Struct):
    messages: list[_Message]
    next: dict[str, Any] | None = None


class _Pointer(Struct):
    queue_id: int
    client_id: str
    message_id: int


class _Pointers(Struct):
    pointers: list[_Pointer]
    next: dict[str, Any] | None = None


class _Kind(NamedTuple):
    """One of the two long listings."""

    path: bytes
    field: str
    decoder: msgspec.json.Decoder[Any]
    # The field that, with the queue, says where a page ended.
    place: str


_MESSAGES: Final = _Kind(b"/get_all_messages", "messages", msgspec.json.Decoder(_Messages), "message_id")
_POINTERS: Final = _Kind(b"/get_all_pointers", "pointers", msgspec.json.Decoder(_Pointers), "client_id")


class Listing:
    """Everything that the groups hold, together."""

    def __init__(self, groups: Sequence[Group], calls: QueueCalls) -> None:
        self._groups = groups
        self._calls = calls

    async def queues(self, body: bytes) -> Response:
        wanted = decoded(_queues_decoder, body)
        found: list[int] = []
        for group in self._groups:
            answer = well(group, await group.call(b"/get_all_queues", b"{}"))
            numbers = msgspec.json.decode(answer.body, type=schema.Queues).queue_ids
            found += [number * SLOTS + group.slot for number in numbers if number <= NUMBER_MAX]
        found = sorted(number for number in found if number > (wanted.after or 0))
        if wanted.limit is None:
            return json_response(schema.Queues(found))
        page = found[: wanted.limit]
        following = page[-1] if len(found) > len(page) else None
        return json_text(b'{"queue_ids":%b,"next":%b}' % (_encode(page), _encode(following)))

    async def messages(self, body: bytes) -> Response:
        wanted = decoded(_messages_decoder, body)
        after = None if wanted.after is None else (wanted.after.queue_id, wanted.after.message_id)
        return await self._listed(_MESSAGES, wanted.limit, after, wanted.queue_id)

    async def pointers(self, body: bytes) -> Response:
        wanted = decoded(_pointers_decoder, body)
        after = None if wanted.after is None else (wanted.after.queue_id, wanted.after.client_id)
        return await self._listed(_POINTERS, wanted.limit, after, None)

    async def _listed(
        self, kind: _Kind, limit: int | None, after: tuple[int, int | str] | None, queue_id: int | None
    ) -> Response:
        if queue_id is not None:
            self._calls.place_of(queue_id)
        pages = self._pages(kind, after, queue_id, _PAGE if limit is None else min(limit, _PAGE))
        if limit is None:
            headers = [(b"content-type", JSON_TYPE.encode()), NO_STORE]
            return Response(200, headers, stream=_written(kind.field, pages))
        found: list[Any] = []
        size = 0
        async for page, is_last in pages:
            taken = page[: limit - len(found)]
            found += taken
            size += sum(len(bytes(each.value)) for each in taken if isinstance(each, _Message))
            if len(found) == limit or size > 8 * 1024 * 1024:
                if is_last and len(taken) == len(page):
                    break
                last = found[-1]
                following = _encode({"queue_id": last.queue_id, kind.place: getattr(last, kind.place)})
                return json_text(b'{"%b":%b,"next":%b}' % (kind.field.encode(), _encode(found), following))
        return json_text(b'{"%b":%b,"next":null}' % (kind.field.encode(), _encode(found)))

    async def _pages(
        self, kind: _Kind, after: tuple[int, int | str] | None, queue_id: int | None, limit: int
    ) -> AsyncIterator[tuple[list[Any], bool]]:
        """Pages of all groups, by their slots; also whether nothing follows."""
        groups = [
            group
            for group in self._groups
            if (after is None or group.slot >= after[0] % SLOTS)
            and (queue_id is None or group.slot == queue_id % SLOTS)
        ]
        for group in groups:
            ask: dict[str, Any] = {"limit": limit}
            if queue_id is not None:
                ask["queue_id"] = queue_id // SLOTS
            if after is not None and group.slot == after[0] % SLOTS:
                ask["after"] = {"queue_id": after[0] // SLOTS, kind.place: after[1]}
            while True:
                page = kind.decoder.decode(well(group, await group.call(kind.path, _encode(ask))).body)
                rows: list[Any] = getattr(page, kind.field)
                rows = [row for row in rows if row.queue_id <= NUMBER_MAX]
                for row in rows:
                    row.queue_id = row.queue_id * SLOTS + group.slot
                if rows or page.next is not None:
                    yield rows, page.next is None and group is groups[-1]
                if page.next is None:
                    break
                ask["after"] = page.next


async def _written(field: str, pages: AsyncIterator[tuple[list[Any], bool]]) -> AsyncGenerator[bytes, None]:
    before = b'{"%b":[' % field.encode()
    async for rows, _ in pages:
        if rows:
            yield before + _encode(rows)[1:-1]
            before = b","
    yield b"]}" if before == b"," else before + b"]}"


def well(group: Group, answer: Answer) -> Answer:
    """An answer that is no error: a part of a listing that is missing must not look as if it were not there."""
    if answer.status != 200:
        raise NoGroupAnswers(f"group {group.name} cannot list what it has now (status {answer.status}); try again")
    return answer

"""Listings over all groups: read page by page, with the ids that queues have here; a page at a time is in memory.

A group that does not answer is left out, and the answer names it under `missing`. If none answers, the listing fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, NO_STORE, Response, json_text
from holdfast.model.errors import NoGroupAnswers, Overloaded
from holdfast.proxy.groups import Group
from holdfast.proxy.queues import NUMBER_MAX, QueueCalls
from holdfast.proxy.settings import SLOTS
from holdfast.proxy.upstream import Answer

_PAGE_ROWS: Final = 1000

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


class _Topics(Struct):
    topics: list[dict[str, Any]]


# Rows, and whether nothing follows.
_Page = tuple[list[Any], bool]

_TOPICS: Final = b"/v1/topics"
_topics_decoder: Final = msgspec.json.Decoder(_Topics)
# A group without a node that is well may be electing a leader: it gets this long, and is looked at so often.
_DOWN_S: Final = 1.0
_LOOK_S: Final = 0.1

_MESSAGES: Final = _Kind(b"/get_all_messages", "messages", msgspec.json.Decoder(_Messages), "message_id")
_POINTERS: Final = _Kind(b"/get_all_pointers", "pointers", msgspec.json.Decoder(_Pointers), "client_id")


class Listing:
    """Everything that the groups hold, together."""

    def __init__(self, groups: Sequence[Group], calls: QueueCalls) -> None:
        self._groups = groups
        self._calls = calls

    async def topics(self) -> Response:
        """The topics of all groups, each with its group."""
        missing = Missing()
        answers = await asyncio.gather(*(missing.unless(group, group.ask(_TOPICS)) for group in self._groups))
        found = [
            {**each, "group": group.name}
            for group, answer in zip(self._groups, answers, strict=True)
            for each in (() if answer is None else _topics_decoder.decode(answer.body).topics)
        ]
        missing.check(self._groups)
        listed = sorted(found, key=lambda each: (each["topic"], each["group"]))
        return json_text(b'{"topics":%b%b}' % (_encode(listed), missing.field()))

    async def queues(self, body: bytes) -> Response:
        wanted = decoded(_queues_decoder, body)
        missing = Missing()
        asked = (missing.unless(group, _patiently(group, b"/get_all_queues", b"{}")) for group in self._groups)
        answers = await asyncio.gather(*asked)
        found: list[int] = []
        for group, answer in zip(self._groups, answers, strict=True):
            numbers = [] if answer is None else msgspec.json.decode(answer.body, type=schema.Queues).queue_ids
            found += [number * SLOTS + group.slot for number in numbers if number <= NUMBER_MAX]
        missing.check(self._groups)
        found = sorted(number for number in found if number > (wanted.after or 0))
        if wanted.limit is None:
            return json_text(b'{"queue_ids":%b%b}' % (_encode(found), missing.field()))
        page = found[: wanted.limit]
        following = page[-1] if len(found) > len(page) else None
        return json_text(b'{"queue_ids":%b,"next":%b%b}' % (_encode(page), _encode(following), missing.field()))

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
        missing = Missing()
        pages = self._pages(kind, after, queue_id, _PAGE_ROWS if limit is None else min(limit, _PAGE_ROWS), missing)
        if limit is None:
            headers = [(b"content-type", JSON_TYPE.encode()), NO_STORE]
            first = await anext(pages, None)
            return Response(200, headers, stream=_written(kind.field, first, pages, missing))
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
                text = (kind.field.encode(), _encode(found), following, missing.field())
                return json_text(b'{"%b":%b,"next":%b%b}' % text)
        return json_text(b'{"%b":%b,"next":null%b}' % (kind.field.encode(), _encode(found), missing.field()))

    async def _pages(
        self, kind: _Kind, after: tuple[int, int | str] | None, queue_id: int | None, limit: int, missing: Missing
    ) -> AsyncIterator[_Page]:
        """Pages of all groups, by their slots; also whether nothing follows.

        Raises `NoGroupAnswers` if there is no page because all of them are missing.
        """
        groups = [
            group
            for group in self._groups
            if (after is None or group.slot >= after[0] % SLOTS)
            and (queue_id is None or group.slot == queue_id % SLOTS)
        ]
        has_any = False
        for group in groups:
            ask: dict[str, Any] = {"limit": limit}
            if queue_id is not None:
                ask["queue_id"] = queue_id // SLOTS
            if after is not None and group.slot == after[0] % SLOTS:
                ask["after"] = {"queue_id": after[0] // SLOTS, kind.place: after[1]}
            while True:
                answer = await missing.unless(group, _patiently(group, kind.path, _encode(ask)))
                if answer is None:
                    break
                page = kind.decoder.decode(answer.body)
                rows: list[Any] = getattr(page, kind.field)
                rows = [row for row in rows if row.queue_id <= NUMBER_MAX]
                for row in rows:
                    row.queue_id = row.queue_id * SLOTS + group.slot
                if rows:
                    has_any = True
                    yield rows, page.next is None and group is groups[-1]
                if page.next is None:
                    break
                ask["after"] = page.next
        if not has_any:
            missing.check(groups)


async def _written(
    field: str, first: _Page | None, pages: AsyncIterator[_Page], missing: Missing
) -> AsyncGenerator[bytes, None]:
    yield b'{"%b":[' % field.encode()
    if first is not None:
        yield _encode(first[0])[1:-1]
        async for rows, _ in pages:
            yield b"," + _encode(rows)[1:-1]
    yield b"]%b}" % missing.field()


class Missing:
    """The groups that could not list what they have, and why."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    async def unless(self, group: Group, asked: Awaitable[Answer]) -> Answer | None:
        """The answer of a group; none if it is missing."""
        try:
            return well(group, await asked)
        except (NoGroupAnswers, Overloaded) as error:
            self._problems[group.name] = error.message
            return None

    def check(self, groups: Sequence[Group]) -> None:
        """Raises `NoGroupAnswers` if none of these groups has answered."""
        if groups and all(group.name in self._problems for group in groups):
            raise NoGroupAnswers("; ".join(self._problems[group.name] for group in groups))

    def field(self) -> bytes:
        """The end of an answer: nothing if no group is missing."""
        if not self._problems:
            return b""
        return b',"missing":' + _encode([{"group": name, "problem": why} for name, why in self._problems.items()])


async def _patiently(group: Group, path: bytes, body: bytes) -> Answer:
    """As `Group.call`, for less long if the group is known to be down: whoever lists wants what the others have."""
    loop = asyncio.get_running_loop()
    asking = loop.create_task(group.call(path, body))
    down_since_s: float | None = None
    try:
        while not (await asyncio.wait({asking}, timeout=_LOOK_S))[0]:
            down_since_s = None if group.is_up else loop.time() if down_since_s is None else down_since_s
            if down_since_s is not None and loop.time() - down_since_s > _DOWN_S:
                raise group.silent()
        return asking.result()
    finally:
        asking.cancel()


def well(group: Group, answer: Answer) -> Answer:
    """An answer that is no error: a part of a listing that is missing must not look as if it were not there."""
    if answer.status != 200:
        raise NoGroupAnswers(f"group {group.name} cannot list what it has now (status {answer.status}); try again")
    return answer

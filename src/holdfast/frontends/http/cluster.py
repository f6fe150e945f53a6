"""The cluster: its nodes, who of them comes and goes, its groups as this node sees them, and who leads."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response
from holdfast.frontends.http.params import OptionalTextParam
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadValue

TOPIC: Final = OptionalTextParam(name="topic", example="orders", doc="only the partitions of this topic")

_transfer_decoder: Final = msgspec.json.Decoder(schema.Transfer)
_change_decoder: Final = msgspec.json.Decoder(schema.MemberChange)


async def describe_cluster(services: Services, request: Request) -> Response:
    return json_response(await services.broker.cluster())


async def list_groups(services: Services, request: Request) -> Response:
    return json_response(schema.Groups(services.broker.groups(TOPIC.of(request.query))))


async def list_members(services: Services, request: Request) -> Response:
    return json_response(await services.broker.backend.members())


async def change_member(services: Services, request: Request) -> Response:
    """What is asked for is carried out from here on; `members` tells how far that is."""
    request.require_type(JSON_TYPE)
    wanted = decoded(_change_decoder, await request.body())
    (node,), backend = request.params, services.broker.backend
    if (wanted.by is not None) is not (wanted.change == "replace"):
        raise BadValue("by: it goes with replace, and replace goes with it")
    if wanted.change in {"remove", "keep"}:
        await backend.remove_member(node, undo=wanted.change == "keep")
    elif wanted.by is not None:
        await backend.replace_member(node, wanted.by)
    else:
        await backend.drain_member(node, undo=wanted.change == "undrain")
    return json_response(await backend.members(), 202)


async def transfer(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_transfer_decoder, await request.body())
    await services.broker.transfer(wanted.topic, wanted.partition, wanted.to)
    return json_response(schema.Transferred(topic=wanted.topic, partition=wanted.partition, leader=wanted.to))

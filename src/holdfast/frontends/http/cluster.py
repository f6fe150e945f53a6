"""The cluster: its nodes, its groups as this node sees them, and who leads."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response
from holdfast.frontends.http.params import OptionalTextParam
from holdfast.frontends.http.services import Services

TOPIC: Final = OptionalTextParam(name="topic", example="orders", doc="only the partitions of this topic")

_transfer_decoder: Final = msgspec.json.Decoder(schema.Transfer)


async def describe_cluster(services: Services, request: Request) -> Response:
    return json_response(await services.broker.cluster())


async def list_groups(services: Services, request: Request) -> Response:
    return json_response(schema.Groups(services.broker.groups(TOPIC.of(request.query))))


async def transfer(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_transfer_decoder, await request.body())
    await services.broker.transfer(wanted.topic, wanted.partition, wanted.to)
    return json_response(schema.Transferred(topic=wanted.topic, partition=wanted.partition, leader=wanted.to))

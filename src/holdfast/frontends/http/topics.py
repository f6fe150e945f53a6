"""Topics: create, list, describe, delete."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response, no_content
from holdfast.frontends.http.services import Services
from holdfast.model.names import path_part
from holdfast.model.topics import TopicConfig

_decoder: Final = msgspec.json.Decoder(schema.CreateTopic)


async def create_topic(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_decoder, await request.body())
    config = TopicConfig(
        partitions=wanted.partitions, retention_ms=wanted.retention_ms, retention_bytes=wanted.retention_bytes
    )
    description = await services.broker.create_topic(wanted.topic, config.checked())
    return json_response(description, 201, [(b"location", f"/v1/topics/{path_part(wanted.topic)}".encode())])


async def list_topics(services: Services, request: Request) -> Response:
    return json_response(schema.Topics(services.broker.topics()))


async def describe_topic(services: Services, request: Request) -> Response:
    return json_response(services.broker.describe_topic(request.params[0]))


async def delete_topic(services: Services, request: Request) -> Response:
    await services.broker.delete_topic(request.params[0])
    return no_content()

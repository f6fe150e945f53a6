"""Subscriptions that the cluster connects to: make, list, remove."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response, no_content
from holdfast.frontends.http.params import OptionalTextParam
from holdfast.frontends.http.services import Services
from holdfast.model.names import path_part

TOPIC: Final = OptionalTextParam(name="topic", example="orders", doc="only subscriptions to this topic")

_decoder: Final = msgspec.json.Decoder(schema.Subscribe)


async def subscribe(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_decoder, await request.body())
    made = await services.broker.callbacks.subscribe(
        wanted.topic, wanted.callback, name=wanted.name, start=wanted.start, format=wanted.format
    )
    return json_response(made, 201, [(b"location", f"/v1/subscriptions/{path_part(made.topic)}/{made.name}".encode())])


async def list_subscriptions(services: Services, request: Request) -> Response:
    found = await services.broker.callbacks.describe(TOPIC.of(request.query))
    return json_response(schema.Subscriptions(found))


async def remove_subscription(services: Services, request: Request) -> Response:
    topic, name = request.params
    await services.broker.callbacks.unsubscribe(topic, name)
    return no_content()

"""Whether the broker lives, whether it takes messages, what it counts, and who it is."""

from __future__ import annotations

from msgspec import UNSET

from holdfast.frontends.http import schema
from holdfast.frontends.http.exchange import Request, Response, json_response
from holdfast.frontends.http.services import Services


async def health(services: Services, request: Request) -> Response:
    kept = services.file_buffer() if services.file_buffer is not None else None
    is_healthy = services.broker.backend.problem() is None if kept is None else kept.db_healthy
    return json_response(schema.Health("alive", "connected" if is_healthy else "disconnected", kept or UNSET))


async def ready(services: Services, request: Request) -> Response:
    reason = "the broker is shutting down" if services.stopping else services.broker.ready_problem()
    return json_response(schema.Ready(reason is None, reason), 200 if reason is None else 503)


async def info(services: Services, request: Request) -> Response:
    return json_response(services.info())

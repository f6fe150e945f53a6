"""`GET /openapi.json`: an OpenAPI 3.1 document of the route table, the body types and the errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_text
from holdfast.frontends.http.routing import Answer, Content, Route
from holdfast.frontends.http.services import Services
from holdfast.model import errors

_ABOUT = (
    "JSON in, JSON out. Times are milliseconds since 1970 (UTC). An offset counts messages in a partition from 0; "
    "where one is expected, `earliest` and `latest` are understood too. Every error has the same shape and a code "
    "that never changes its meaning."
)
_TAGS = {
    "Topics": "Named streams, made of partitions.",
    "Publish": "Messages in. An answer means that they are durable.",
    "Read": "Messages out, by offset, by time, or as they come.",
    "Cursors": "A named reader's place in a topic, kept by the broker.",
    "Subscriptions": "Receivers that the cluster connects to and delivers to.",
    "Queue": "Push and pop, in the shapes of Queen's clients.",
    "Numbered queues": "One value in, the next one out: queues with numbers, and clients with pointers.",
    "Transactions": "Several messages, over topics and partitions, become visible together or not at all.",
    "Cluster": "Nodes, and who leads what.",
    "Operation": "Health, metrics and this description.",
}
_PATH_PARAMETERS = {
    "topic": (
        "the topic's name, percent-encoded: printable characters other than '|' and ','",
        {"type": "string", "examples": ["orders"]},
    ),
    "partition": ("the partition's number", {"type": "integer", "minimum": 0}),
    "queue": ("the queue's name, which is a topic's", {"type": "string", "examples": ["orders"]}),
    "partition_name": ("the name that messages were pushed with", {"type": "string", "examples": ["Default"]}),
    "writer": ("the writer's name: letters, digits, '.', '_' and '-'", {"type": "string", "examples": ["query-1"]}),
    "node": ("the node's name: letters, digits, '_' and '-'", {"type": "string", "examples": ["n4"]}),
    "name": ("the cursor's name: letters, digits, '.', '_' and '-'", {"type": "string", "examples": ["billing"]}),
}
# What can happen to any call.
_ALWAYS: tuple[type[errors.HoldfastError], ...] = (errors.BadValue, errors.CrossOrigin, errors.Internal)


async def openapi(services: Services, request: Request) -> Response:
    return json_text(services.description)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The description of these routes."""
    shapes = [content.shape for route in routes for content in _contents(route) if content.shape is not None]
    described, components = msgspec.json.schema_components(
        [*shapes, schema.Error], ref_template="#/components/schemas/{name}"
    )
    by_shape = {repr(shape): one for shape, one in zip([*shapes, schema.Error], described, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_shape)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": _version(), "description": _ABOUT},
        "servers": [{"url": "/", "description": "this broker"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, by_shape: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "description": route.doc or f"{route.summary}.",
    }
    parameters = [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)]
    if parameters:
        described["parameters"] = parameters
    if route.bodies:
        described["requestBody"] = {"required": route.is_body_needed, "content": _content(route.bodies, by_shape)}
    described["responses"] = {
        **{str(answer.status): _answer(answer, by_shape) for answer in route.answers},
        **_errors(route, by_shape),
    }
    return described


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    for name in re.findall(r"{(\w+)}", route.path):
        text, described = _PATH_PARAMETERS[name]
        found.append({"name": name, "in": "path", "required": True, "description": text, "schema": described})
    return found


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": param.name,
            "in": "query",
            "required": param.required,
            "description": param.doc,
            "schema": param.schema(),
        }
        for param in route.query
    ]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in route.request_headers
    ]


def _contents(route: Route) -> list[Content]:
    return [*route.bodies, *(content for answer in route.answers for content in answer.contents)]


def _content(contents: tuple[Content, ...], by_shape: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for content in contents:
        described: dict[str, Any] = {}
        if content.shape is not None:
            described["schema"] = by_shape[repr(content.shape)]
        elif content.media_type.startswith("text/") or content.media_type.endswith("-text"):
            described["schema"] = {"type": "string"}
        if content.example is not None:
            described["example"] = content.example
        found[content.media_type] = described
    return found


def _answer(answer: Answer, by_shape: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.doc}
    if answer.contents:
        described["content"] = _content(answer.contents, by_shape)
    if answer.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers
        }
    return described


def _errors(route: Route, by_shape: dict[str, Any]) -> dict[str, Any]:
    """Error answers by status; each lists the codes it can carry. A status with an answer of its own keeps it."""
    codes: dict[int, set[str]] = {}
    for error in (*_ALWAYS, *route.errors):
        codes.setdefault(error.http_status, set()).add(error.code)
    taken = {answer.status for answer in route.answers}
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in sorted(codes[status]))}",
            "content": {JSON_TYPE: {"schema": by_shape[repr(schema.Error)]}},
        }
        for status in sorted(codes)
        if status not in taken
    }


def _version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "0"

"""The description is complete: whatever the server can do or say stands in it."""

from __future__ import annotations

import re
from typing import Any

from holdfast.frontends.http.openapi import document
from holdfast.frontends.http.routes import ROUTES
from holdfast.frontends.http.routing import Router
from tests.http.http_server import Server

DOCUMENT = document(ROUTES)


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, call) for path, calls in DOCUMENT["paths"].items() for method, call in calls.items()]


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for value in node.values() for found in references(value)]
    if isinstance(node, list):
        return [found for value in node for found in references(value)]
    return []


def test_document_is_served(shared_server: Server) -> None:
    assert shared_server.get("/openapi.json").json == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["title"] and DOCUMENT["info"]["version"]


def test_every_route_is_described_and_nothing_else() -> None:
    assert {(path, method.upper()) for path, method, _ in operations()} == {(r.path, r.method) for r in ROUTES}
    ids = [call["operationId"] for _, _, call in operations()]
    assert len(ids) == len(set(ids))
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert {call["tags"][0] for _, _, call in operations()} == tags


def test_every_parameter_of_path_and_query_is_described() -> None:
    for route in ROUTES:
        described = DOCUMENT["paths"][route.path][route.method.lower()].get("parameters", [])
        in_path = [one["name"] for one in described if one["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", route.path)
        assert [one["name"] for one in described if one["in"] == "query"] == [param.name for param in route.query]
        assert all(one["description"] and one["schema"]["type"] for one in described)
        assert all(one["required"] for one in described if one["in"] == "path")


def test_every_answer_says_what_it_is() -> None:
    for path, method, call in operations():
        assert call["summary"] and call["description"], (path, method)
        # What is always refused is there to say so.
        is_refused = "`replaced_by_consensus`" in call["responses"].get("409", {}).get("description", "")
        assert any(status < "400" for status in call["responses"]) is not is_refused, (path, method)
        for status, answer in call["responses"].items():
            assert answer["description"], (path, method, status)
            for media_type, content in answer.get("content", {}).items():
                assert "schema" in content or "batches" in media_type, (path, method, status, media_type)
        assert {"400", "403", "500"} <= set(call["responses"]), (path, method)
        if method in {"post", "put"}:
            # Only a reason for an abort may be left out.
            assert call["requestBody"]["required"] is (call["operationId"] != "abort")
            assert call["requestBody"]["content"]
            assert {"413", "415"} <= set(call["responses"]), (path, method)


def test_every_reference_leads_somewhere() -> None:
    found = references(DOCUMENT)
    assert found
    for reference in found:
        name = reference.removeprefix("#/components/schemas/")
        assert name in DOCUMENT["components"]["schemas"], reference
    used = {reference.rsplit("/", 1)[1] for reference in found}
    assert used == set(DOCUMENT["components"]["schemas"])


def test_every_error_that_a_call_declares_stands_under_its_status() -> None:
    for route in ROUTES:
        responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
        own = {answer.status for answer in route.answers}
        for error in route.errors:
            if error.http_status not in own:
                assert f"`{error.code}`" in responses[str(error.http_status)]["description"], (route.operation, error)


def test_body_fields_are_described_with_their_types() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["PublishMessage"]["properties"]) == {
        "value",
        "json",
        "base64",
        "key",
        "id",
        "headers",
        "partition",
    }
    assert schemas["PublishMessage"]["additionalProperties"] is False
    assert schemas["PublishMessage"]["properties"]["base64"]["contentEncoding"] == "base64"
    assert schemas["CreateTopic"]["required"] == ["topic"]
    assert "UNSET" not in str(DOCUMENT)


def test_examples_are_accepted_by_the_server(server: Server) -> None:
    server.publish("orders", "a")
    server.get("/v1/topics/orders/cursors/billing/messages")
    server.call("DELETE", "/v1/topics/other")
    for path, method, call in operations():
        for content in call.get("requestBody", {}).get("content", {}).values():
            if "example" not in content:
                continue
            body = content["example"]
            if call["operationId"] == "createTopic":
                body = {**body, "topic": "fresh"}
            where = path.replace("{topic}", "orders").replace("{name}", "billing").replace("{partition}", "0")
            where = where.replace("{writer}", "query-1").replace("{node}", "n1")
            if call["operationId"] == "stage":
                where += "?topic=orders&number=8"
            answer = server.call(method.upper(), where, body)
            assert str(answer.status) in call["responses"] and answer.status < 300, (path, answer)


def test_every_route_is_found_by_its_path() -> None:
    router = Router(ROUTES)
    for route in ROUTES:
        found, names = router.find(route.method, re.sub(r"{\w+}", "7", route.path).encode())
        assert found is route
        assert names == ("7",) * len(re.findall(r"{\w+}", route.path))

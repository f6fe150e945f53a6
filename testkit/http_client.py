"""A plain HTTP client for brokers and proxies: the standard library's, which shares no code with the server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testkit.wait import PATIENCE_S

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code, after a check that the error has the shape every error has."""
        assert self.headers["content-type"] == "application/json", self
        error = self.json["error"]
        assert set(error) <= {"code", "message", "next_offset"} and error["message"], self
        assert "Traceback" not in error["message"], self
        code: str = error["code"]
        return code

    @property
    def message(self) -> str:
        message: str = self.json["error"]["message"]
        return message


class Client:
    """Talks HTTP to a broker on this machine, with the standard library's client."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout_s: float = PATIENCE_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None and not any(name.lower() == "content-type" for name in sent):
            sent |= JSON
        connection = self.connect()
        try:
            connection.request(method, path, body, sent)
            return answer_of(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def publish(self, topic: str, *values: str) -> list[dict[str, Any]]:
        answer = self.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": value} for value in values]})
        assert answer.status == 200, answer
        results: list[dict[str, Any]] = answer.json["results"]
        return results

    def create(self, topic: str, partitions: int = 1) -> None:
        answer = self.call("POST", "/v1/topics", {"topic": topic, "partitions": partitions})
        assert answer.status == 201, answer


def answer_of(response: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    assert headers["x-content-type-options"] == "nosniff", "a browser may guess what this is"
    return Answer(response.status, headers, response.read())

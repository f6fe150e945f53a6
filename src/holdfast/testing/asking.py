"""One HTTP request to one node, without a client: a node that is away is an answer here, not a reason to try on."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """`status` is 0 where nobody answers, and `content` then says why."""

    status: int
    content: Any


def ask(address: str, path: str, timeout_s: float = 2.0, *, send: object = None) -> Answer:
    """`GET path` of the node at `HOST:PORT`, or `POST` of what is to be sent as JSON."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    try:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        body = None if send is None else json.dumps(send)
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, json.loads(response.read()))
    except OSError as error:
        return Answer(0, str(error.strerror or error or type(error).__name__))
    except (http.client.HTTPException, ValueError) as error:
        return Answer(0, f"no answer that is understood: {error!r}")
    finally:
        connection.close()

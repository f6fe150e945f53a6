"""One HTTP request and its JSON answer, for commands that need no client: health and metrics."""

from __future__ import annotations

import http.client
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.model.errors import ConnectionLost

_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class Answer(NamedTuple):
    status: int
    content: Any


def get(host: str, port: int, path: str, timeout_s: float) -> Answer:
    """`GET path`. Raises `ConnectionLost` if nothing understandable comes back within the time."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        return Answer(response.status, msgspec.json.decode(response.read(_ANSWER_BYTES_MAX)))
    except OSError as error:
        raise ConnectionLost(str(error.strerror or error or type(error).__name__)) from error
    except (http.client.HTTPException, msgspec.DecodeError) as error:
        if "CONNACK" in str(error):
            raise ConnectionLost("this is the text port; name the HTTP one, by default 8090") from error
        raise ConnectionLost(f"does not answer like a broker: {error!r}") from error
    finally:
        connection.close()

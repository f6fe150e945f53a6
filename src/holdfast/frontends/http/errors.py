"""What was raised becomes what is answered: a status, a stable code and a text for people.

Nothing else of an exception reaches the client. Errors of JSON bodies are put into words here too: a
malformed body says at which byte, a wrong type says which field.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from holdfast.frontends.http.exchange import HeaderList, Response, json_response
from holdfast.model.errors import BadJson, BadValue, HoldfastError, MethodNotAllowed, WorldError

T = TypeVar("T")

# A client that comes back after a second finds most troubles of the world gone, or is told again.
_RETRY_AFTER = (b"retry-after", b"1")


def error_body(error: HoldfastError) -> dict[str, Any]:
    """The body of every error; `next_offset` says where reading can go on after damage."""
    described: dict[str, Any] = {"code": error.code, "message": error.message}
    next_offset = getattr(error, "next_offset", None)
    if next_offset is not None:
        described["next_offset"] = next_offset
    return {"error": described}


def error_response(error: HoldfastError) -> Response:
    headers: HeaderList = []
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode()))
    if isinstance(error, WorldError) and error.http_status == 503:
        headers.append(_RETRY_AFTER)
    return json_response(error_body(error), error.http_status, headers)


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """`body` as what the decoder knows, or an error that says where it is wrong."""
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise body_error(error, body) from None


def body_error(error: Exception, body: bytes) -> HoldfastError:
    """The decoder's exception in the words of the interface."""
    if isinstance(error, msgspec.ValidationError):
        return BadValue(_field_first(str(error)))
    if isinstance(error, UnicodeDecodeError):
        return BadJson(f"the body is not UTF-8: {error.reason} at byte {_utf8_fault(body, error.start)}")
    if isinstance(error, RecursionError):
        return BadJson("the body is nested too deeply")
    text = str(error)
    if "truncated" in text and _is_whole(body):
        return BadJson("the body is not JSON: a text has half of a surrogate pair, such as \\ud800")
    if "truncated" in text:
        return BadJson(f"the body ends too early, at byte {len(body)}")
    return BadJson(text.replace("JSON is malformed: ", "the body is not JSON: "))


def _is_whole(body: bytes) -> bool:
    """Whether somebody who takes halves of pairs finds an end; the decoder looks for the other half behind it."""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _field_first(text: str) -> str:
    """``Expected `str`, got `int` - at `$.messages[0].value` `` with the field in front."""
    problem, separator, path = text.partition(" - at ")
    problem = problem.replace("`", "'")
    if not separator:
        return f"the body: {problem[:1].lower()}{problem[1:]}"
    field = path.replace("`", "").replace("$.", "", 1).replace("$", "the body", 1)
    return f"{field}: {problem[:1].lower()}{problem[1:]}"


def _utf8_fault(body: bytes, otherwise: int) -> int:
    """Where in the body the fault is; the decoder counts from the start of the string it was reading."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return otherwise

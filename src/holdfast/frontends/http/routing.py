"""What a call is, and how a path finds it.

A path is cut at its slashes before anything in it is percent-decoded, so that an encoded slash stays
part of a name (and is refused with it) and can never become another path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response
from holdfast.frontends.http.params import Param
from holdfast.frontends.http.services import Services
from holdfast.model import errors
from holdfast.model.errors import BadValue, HoldfastError, MethodNotAllowed, NotFound

Handler = Callable[[Services, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One media type of a body, with the type that JSON of it decodes to."""

    media_type: str = JSON_TYPE
    shape: Any = None
    example: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status that is not an error."""

    status: int
    doc: str
    contents: tuple[Content, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One call: how it is found, what it takes, what it answers, and what runs."""

    method: str
    path: str
    operation: str
    tag: str
    summary: str
    handler: Handler
    answers: tuple[Answer, ...]
    doc: str = ""
    query: tuple[Param, ...] = ()
    request_headers: tuple[tuple[str, str], ...] = ()
    bodies: tuple[Content, ...] = ()
    is_body_needed: bool = True
    errors: tuple[type[HoldfastError], ...] = ()
    # A GET that moves something; a page of another site must not be able to trigger it.
    changes_state: bool = False


# What can be wrong with any body.
BODY_ERRORS: Final = (
    errors.BadJson,
    errors.BadValue,
    errors.TooLarge,
    errors.UnsupportedMediaType,
    errors.CrossOrigin,
    errors.Overloaded,
    errors.Unavailable,
)


def ok(doc: str, shape: Any) -> tuple[Answer, ...]:
    return (Answer(status=200, doc=doc, contents=(Content(shape=shape),)),)


class Router:
    """Finds a route by the raw bytes of a path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        # Paths differ first in their number of segments, which leaves a handful to compare.
        self._by_length: dict[int, list[tuple[tuple[bytes, ...], dict[str, Route]]]] = {}
        for route in routes:
            template = tuple(route.path.encode().split(b"/"))
            candidates = self._by_length.setdefault(len(template), [])
            for known, methods in candidates:
                if known == template:
                    methods[route.method] = route
                    break
            else:
                candidates.append((template, {route.method: route}))
        for candidates in self._by_length.values():
            # Where a fixed word and a name both fit, the fixed word is meant.
            candidates.sort(key=lambda candidate: [segment[:1] == b"{" for segment in candidate[0]])

    def find(self, method: str, raw_path: bytes) -> tuple[Route, tuple[str, ...]]:
        """The route and the names in its path, in order. Raises `NotFound` or `MethodNotAllowed`."""
        segments = raw_path.split(b"/")
        for template, methods in self._by_length.get(len(segments), ()):
            names = []
            for expected, segment in zip(template, segments, strict=True):
                if expected[:1] == b"{" and segment:
                    names.append(segment)
                elif expected != segment:
                    break
            else:
                route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
                if route is None:
                    raise _not_allowed(method, methods)
                return route, tuple(map(decoded_name, names))
        hint = "; write a / in a topic's name as %2F" if raw_path.startswith(b"/v1/topics/") else ""
        raise NotFound(f"there is nothing at this path{hint}; GET /docs shows every call")


def _not_allowed(method: str, methods: dict[str, Route]) -> MethodNotAllowed:
    allowed = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
    return MethodNotAllowed(f"{method} is not possible here; {allowed} is", allowed)


def decoded_name(segment: bytes) -> str:
    """A name in a path as it is meant. Raises `BadValue`."""
    try:
        return (unquote_to_bytes(segment) if b"%" in segment else segment).decode()
    except UnicodeDecodeError:
        raise BadValue("a name in the path is not percent-encoded UTF-8") from None

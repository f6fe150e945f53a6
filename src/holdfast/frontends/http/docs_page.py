"""`GET /docs`: one page that reads `/openapi.json` and lets a person try every call.

The page is a file beside this module and the same for everybody: nothing of a request goes into it.
Its policy allows its own script by hash and this broker as the only place to talk to, so even a
message that is full of markup can do nothing when it is shown.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

from holdfast.frontends.http.exchange import Request, Response
from holdfast.frontends.http.services import Services

HTML_TYPE: Final = "text/html; charset=utf-8"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _between(page: str, begin: str, end: str) -> str:
    return page.split(begin, 1)[1].split(end, 1)[0]


_PAGE: Final = files(__package__).joinpath("docs.html").read_text("utf-8")
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash(_between(_PAGE, '<script>', '</script>'))}",
        f"style-src {_hash(_between(_PAGE, '<style>', '</style>'))}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


async def docs(services: Services, request: Request) -> Response:
    headers = [
        (b"content-type", HTML_TYPE.encode()),
        (b"content-security-policy", _POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    ]
    return Response(200, headers, _PAGE.encode())

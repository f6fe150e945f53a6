"""The HTTP front end: JSON and record batches in, broker calls, JSON, batches and event streams out.

The way of a request, in the order of the modules: `server` owns the socket, `connection` guards it,
`app` finds the `routing.Route` in the table of `routes`, checks `origin` and `params` and calls the
handler (`topics`, `publish`, `batches`, `read`, `tail`, `cursors`, `push`, `pop`, `cluster`, `health`,
`metrics`) with the
`services` that all of them share. It answers with an `exchange.Response`, whose JSON stands in
`schema`; `errors` turns what was raised into one. `openapi` and `docs_page` are written from the same
table, so they cannot know less than the code does.
"""

from holdfast.frontends.http.schema import Info
from holdfast.frontends.http.server import HttpFrontend

__all__ = ["HttpFrontend", "Info"]

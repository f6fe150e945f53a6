"""What a proxy answers: the queue interface over all groups, topics passed on to theirs, and how it is itself."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.broker.queue_names import queue_id_of
from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.app import send_response
from holdfast.frontends.http.errors import decoded, error_response
from holdfast.frontends.http.exchange import (
    JSON_TYPE,
    NO_STORE,
    BodyBudget,
    ClientGone,
    Receive,
    Request,
    Response,
    json_response,
)
from holdfast.frontends.http.origin import OriginRule
from holdfast.frontends.http.queue_brokers import REFUSED_CALLS, UNDERSTOOD_CALLS, check_told
from holdfast.frontends.http.routing import decoded_name
from holdfast.frontends.http.short_way import ShortCall
from holdfast.model.errors import (
    BadTopicName,
    HoldfastError,
    Internal,
    MethodNotAllowed,
    NotFound,
    ReplacedByConsensus,
)
from holdfast.model.limits import HTTP_BODY_BYTES_MAX
from holdfast.proxy.groups import Group
from holdfast.proxy.listing import Listing
from holdfast.proxy.places import Places
from holdfast.proxy.queues import QueueCalls
from holdfast.proxy.relay import Relay

Send = Callable[[dict[str, Any]], Awaitable[None]]

_TOPICS: Final = b"/v1/topics"
_LARGEST_BODIES_HELD: Final = 8
_PUBLISHES: Final = (b"messages", b"batches")


class _Named(msgspec.Struct):
    topic: str


_named_decoder: Final = msgspec.json.Decoder(_Named)


class Proxy:
    """One proxy's calls. It is also the `Desk` of its short way."""

    def __init__(self, groups: Sequence[Group], counts: Counter[str], log: Callable[..., None]) -> None:
        self.groups = groups
        self.counts = counts
        self.budget = BodyBudget(
            request_bytes_max=HTTP_BODY_BYTES_MAX, bytes_max=_LARGEST_BODIES_HELD * HTTP_BODY_BYTES_MAX
        )
        self.answers: Counter[tuple[str, int]] = Counter()
        self.errors: Counter[str] = Counter()
        self.connections: Callable[[], int] = lambda: 0
        self._log = log
        self._queues = QueueCalls(groups)
        self._listing = Listing(groups, self._queues)
        self._places = Places(groups, self._queues)
        self._posts: dict[bytes, Callable[[bytes], Awaitable[Response]]] = {
            b"/create_queue": self._queues.create,
            b"/append": self._append,
            b"/read": self._read,
            b"/get_all_queues": self._listing.queues,
            b"/get_all_messages": self._listing.messages,
            b"/get_all_pointers": self._listing.pointers,
            b"/broker_info": self._info,
        }
        self._gets: dict[bytes, Callable[[], Response]] = {
            b"/health": lambda: json_response({"status": "alive"}),
            b"/ready": self._ready,
            b"/metrics": self._metrics,
        }

    def log(self, event: str, /, **fields: object) -> None:
        self._log(event, **fields)

    def short_calls(self) -> dict[bytes, ShortCall]:
        return {
            b"POST /append HTTP/1.1\r\n": ShortCall("append", self._queues.begin_append),
            b"POST /read HTTP/1.1\r\n": ShortCall("read", self._queues.begin_read),
        }

    def app(self, origin: OriginRule) -> Callable[[dict[str, Any], Receive, Send], Awaitable[None]]:
        """The application for one address."""

        async def serve(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            headers = dict(scope["headers"])
            request = Request(headers, (), receive, self.budget)
            operation = self._operation(scope["raw_path"])
            try:
                try:
                    origin.check(headers, changes_state=scope["method"] not in {"GET", "HEAD"})
                    response = await self._answer(scope, request, receive)
                except HoldfastError as error:
                    self.errors[error.code] += 1
                    response = error_response(error)
                except ClientGone:
                    return
                except Exception as error:  # noqa: BLE001 - a bug in one call must not end the connection silently
                    self._log("proxy_failed", error=repr(error), traceback="".join(traceback.format_exception(error)))
                    response = error_response(Internal("the proxy failed to do this; its log says why"))
                self.answers[operation, response.status] += 1
                await send_response(response, send, scope["method"], expects_continue=b"expect" in headers)
            finally:
                request.release()

        return serve

    def _operation(self, path: bytes) -> str:
        """What an answer is counted under: one of few words, whatever is asked."""
        if path == _TOPICS or path.startswith(_TOPICS + b"/"):
            return "topics"
        name = path.decode("latin-1")
        is_known = path in self._posts or path in self._gets or name in UNDERSTOOD_CALLS or name in REFUSED_CALLS
        return name.strip("/") if is_known else "other"

    async def _answer(self, scope: dict[str, Any], request: Request, receive: Receive) -> Response:
        path, method = scope["raw_path"], scope["method"]
        if path == _TOPICS or path.startswith(_TOPICS + b"/"):
            return await self._of_topics(scope, request, receive)
        if path in self._gets:
            if method not in {"GET", "HEAD"}:
                raise MethodNotAllowed(f"{method} is not possible here; GET is", "GET, HEAD")
            return self._gets[path]()
        call = self._posts.get(path)
        name = path.decode("latin-1")
        if call is None and name not in UNDERSTOOD_CALLS and name not in REFUSED_CALLS:
            raise NotFound("a proxy has the queue calls, /v1/topics, /health, /ready and /metrics; brokers have more")
        if method != "POST":
            raise MethodNotAllowed(f"{method} is not possible here; POST is", "POST")
        request.require_type(JSON_TYPE)
        body = await request.body()
        if call is not None:
            return await call(body)
        if name in REFUSED_CALLS:
            decoded(REFUSED_CALLS[name], body)
            raise ReplacedByConsensus("brokers replicate by consensus; nothing is written past it")
        check_told(name, body)
        told = "nothing was changed: a proxy is told its groups when it starts; POST /broker_info names them"
        return json_response(schema.Accepted(ok=True, changed=False, note=told))

    async def _append(self, body: bytes) -> Response:
        done, response_of = self._queues.begin_append(body)
        return response_of(await done)

    async def _read(self, body: bytes) -> Response:
        done, response_of = self._queues.begin_read(body)
        return response_of(await done)

    # --- topics -------------------------------------------------------------------------------------

    async def _of_topics(self, scope: dict[str, Any], request: Request, receive: Receive) -> Response:
        path, method, headers = scope["raw_path"], scope["method"], scope["headers"]
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        if path == _TOPICS and method in {"GET", "HEAD"}:
            return await self._listing.topics()
        if path == _TOPICS:
            request.require_type(JSON_TYPE)
            body = await request.body()
            topic = decoded(_named_decoder, body).topic
            if queue_id_of(topic) is not None:
                raise BadTopicName(f"{topic}: names like this are those of queues; POST /create_queue makes one")
            place = await self._places.find(topic, or_new=True)
            return await Relay(place.group, method, _TOPICS + query, headers, receive, body).response()
        name, slash, rest = path[len(_TOPICS) + 1 :].partition(b"/")
        topic = decoded_name(name)
        or_new = method == "POST" and rest.rpartition(b"/")[2] in _PUBLISHES
        place = await self._places.find(topic, or_new=or_new)
        target = b"%b/%b%b%b%b" % (_TOPICS, quote(place.topic, safe="").encode(), slash, rest, query)
        response = await Relay(place.group, method, target, headers, receive).response()
        if response.status == 404 or method == "DELETE":
            self._places.forget(topic)
        return response

    # --- itself -------------------------------------------------------------------------------------

    async def _info(self, body: bytes) -> Response:
        decoded(msgspec.json.Decoder(schema.Nothing), body)
        return json_response(
            {
                "broker_id": "proxy",
                "node": "proxy",
                "is_leader": False,
                "leader_id": None,
                "leader_url": None,
                "term": 0,
                "groups": self._described(),
            }
        )

    def _described(self) -> list[dict[str, Any]]:
        return [
            {
                "group": group.name,
                "slot": group.slot,
                "is_up": group.is_up,
                "nodes": [
                    {
                        "address": str(node.address),
                        "is_up": node.is_up,
                        "is_leader": node.is_leader,
                        "problem": node.problem or None,
                    }
                    for node in group.nodes
                ],
            }
            for group in self.groups
        ]

    def _ready(self) -> Response:
        """Ready while a group answers: what the others have is refused, call by call."""
        is_ready = any(group.is_up for group in self.groups)
        return json_response({"ready": is_ready, "groups": self._described()}, 200 if is_ready else 503)

    def _metrics(self) -> Response:
        lines = [
            "# TYPE holdfast_proxy_answers_total counter",
            *(
                f'holdfast_proxy_answers_total{{call="{call}",status="{status}"}} {count}'
                for (call, status), count in sorted(self.answers.items())
            ),
            "# TYPE holdfast_proxy_errors_total counter",
            *(f'holdfast_proxy_errors_total{{code="{code}"}} {count}' for code, count in sorted(self.errors.items())),
            "# TYPE holdfast_proxy_retries_total counter",
            f"holdfast_proxy_retries_total {self.counts['retries']}",
            "# TYPE holdfast_proxy_connections gauge",
            f"holdfast_proxy_connections {self.connections()}",
            "# TYPE holdfast_proxy_node_up gauge",
            "# TYPE holdfast_proxy_node_connections gauge",
        ]
        for group in self.groups:
            for node in group.nodes:
                labels = f'{{group="{_escaped(group.name)}",node="{_escaped(str(node.address))}"}}'
                lines.append(f"holdfast_proxy_node_up{labels} {int(node.is_up)}")
                lines.append(f"holdfast_proxy_node_connections{labels} {node.connections}")
        text = "\n".join([*sorted(lines, key=_family), ""]).encode()
        return Response(200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), NO_STORE], text)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(line: str) -> tuple[str, bool]:
    """Lines of one metric stand together, its type first."""
    is_type = line.startswith("# TYPE ")
    name = line.split()[2] if is_type else line.partition("{")[0].split()[0]
    return name, not is_type

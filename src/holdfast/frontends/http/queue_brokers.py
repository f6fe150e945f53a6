"""What brokers of an older kind say to each other: understood, so that their tools find what they look for here.

Nobody has to tell a node who its peers are or who leads: the consensus knows, and it is what replicates. So heartbeats
and lists of addresses are checked and change nothing, which the answer says. Calls that would write past the consensus
are refused: a message that one node takes without the others is one that the next leader does not have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response
from holdfast.frontends.http.services import Services
from holdfast.model.cluster import ClusterDescription
from holdfast.model.errors import BadValue, ReplacedByConsensus

_NUMBERED: Final = re.compile(r"[A-Za-z]+([0-9]{1,15})\Z")
_URLS_MAX: Final = 1000
_URL: Final = re.compile(r"https?://[^\s/]+/?\Z")

_nothing: Final = msgspec.json.Decoder(schema.Nothing)
# What is checked and changes nothing, and what is checked and refused, by path.
UNDERSTOOD_CALLS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    "/heartbeat": msgspec.json.Decoder(schema.Heartbeat),
    "/set_follower_urls": msgspec.json.Decoder(schema.FollowerUrls),
    "/set_peer_urls": msgspec.json.Decoder(schema.PeerUrls),
}
REFUSED_CALLS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    "/apply_create_queue": msgspec.json.Decoder(schema.ApplyCreateQueue),
    "/apply_append": msgspec.json.Decoder(schema.ApplyAppend),
    "/apply_set_pointer": msgspec.json.Decoder(schema.ApplySetPointer),
}


async def broker_info(services: Services, request: Request) -> Response:
    decoded(_nothing, await _json(request))
    return json_response(info_of(await services.broker.cluster()))


def info_of(cluster: ClusterDescription) -> schema.BrokerInfo:
    """Exactly one node of a cluster says that it leads, as long as there is a majority."""
    ids = broker_ids([node.node for node in cluster.nodes])
    urls = {node.node: f"http://{node.addresses['http']}" for node in cluster.nodes if node.addresses.get("http")}
    leader = cluster.leader
    if cluster.store is not None and leader is not None:
        # Over a database all brokers are equal. The one that came first is named, so that all name the same.
        leader = min(cluster.nodes, key=lambda node: (len(node.life or ""), node.life or "")).node
    return schema.BrokerInfo(
        broker_id=ids[cluster.asked],
        node=cluster.asked,
        is_leader=leader == cluster.asked,
        leader_id=None if leader is None else ids.get(leader, leader),
        leader_url=None if leader is None else urls.get(leader),
        term=cluster.term,
        self_url=urls.get(cluster.asked),
        has_quorum=cluster.has_quorum,
        peer_urls=[url for node, url in sorted(urls.items()) if node != cluster.asked],
    )


def broker_ids(nodes: Collection[str]) -> dict[str, schema.BrokerId]:
    """n1 is 1, where every node is letters and a number of its own; else a node's name is its id."""
    found = {node: _NUMBERED.match(node) for node in nodes}
    numbers = {node: int(match[1]) for node, match in found.items() if match is not None}
    if len(set(numbers.values())) < len(set(nodes)):
        return {node: node for node in nodes}
    return dict(numbers)


async def heartbeat(services: Services, request: Request) -> Response:
    check_told("/heartbeat", await _json(request))
    return _accepted("the nodes elect their leader; POST /broker_info names it")


async def set_follower_urls(services: Services, request: Request) -> Response:
    check_told("/set_follower_urls", await _json(request))
    return _accepted("the consensus replicates to all nodes of the cluster; GET /v1/cluster names them")


async def set_peer_urls(services: Services, request: Request) -> Response:
    check_told("/set_peer_urls", await _json(request))
    return _accepted("the nodes know each other by their settings; GET /v1/cluster names them")


async def apply_create_queue(services: Services, request: Request) -> Response:
    decoded(REFUSED_CALLS["/apply_create_queue"], await _json(request))
    raise _replaced("/create_queue")


async def apply_append(services: Services, request: Request) -> Response:
    decoded(REFUSED_CALLS["/apply_append"], await _json(request))
    raise _replaced("/append")


async def apply_set_pointer(services: Services, request: Request) -> Response:
    decoded(REFUSED_CALLS["/apply_set_pointer"], await _json(request))
    raise _replaced("/read")


async def _json(request: Request) -> bytes:
    request.require_type(JSON_TYPE)
    return await request.body()


def check_told(path: str, body: bytes) -> None:
    """Check the body of a call that changes nothing. Raises `BadJson`, `BadValue`."""
    for field, told in msgspec.structs.asdict(decoded(UNDERSTOOD_CALLS[path], body)).items():
        if field.endswith(("_url", "_urls")):
            _check_urls(field, [told] if isinstance(told, str) else told)


def _check_urls(field: str, urls: list[str]) -> None:
    if len(urls) > _URLS_MAX:
        raise BadValue(f"{field}: {len(urls)} addresses; at most {_URLS_MAX} are allowed")
    for url in urls:
        if len(url) > 500 or not _URL.match(url):
            raise BadValue(f"{field}: {url[:80]!a} is not the address of a broker, as http://127.0.0.1:8001 is")


def _accepted(why: str) -> Response:
    return json_response(schema.Accepted(ok=True, changed=False, note=f"nothing was changed: {why}"))


def _replaced(instead: str) -> ReplacedByConsensus:
    return ReplacedByConsensus(f"nodes replicate by consensus, and nothing is written past it; use POST {instead}")

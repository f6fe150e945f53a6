"""Subscriptions that the cluster connects to, as a client makes and sees them."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlencode

import msgspec

from holdfast.client.api import Api, Place
from holdfast.client.connection import Request
from holdfast.model.callbacks import CallbackDescription
from holdfast.model.names import cursor_name, path_part, topic_name


class _Subscriptions(msgspec.Struct, frozen=True):
    subscriptions: list[CallbackDescription]


async def subscribe_callback(
    api: Api, topic: str, callback: str, name: str | None, start: Place, format: Literal["plain", "numbered"]
) -> CallbackDescription:
    """Asking twice does no harm: a name that is known goes on where it stands."""
    fields = {"topic": topic_name(topic), "callback": callback, "name": name, "from": start, "format": format}
    body = msgspec.json.encode({key: value for key, value in fields.items() if value is not None})
    return await api.ask(Request("POST", "/v1/subscriptions", body), CallbackDescription)


async def list_subscriptions(api: Api, topic: str | None) -> list[CallbackDescription]:
    query = "" if topic is None else f"?{urlencode({'topic': topic_name(topic)})}"
    return (await api.ask(Request("GET", f"/v1/subscriptions{query}"), _Subscriptions)).subscriptions


async def remove_subscription(api: Api, topic: str, name: str) -> None:
    path = f"/v1/subscriptions/{path_part(topic_name(topic))}/{cursor_name(name)}"
    await api.ask_once(Request("DELETE", path), done_before="subscription_not_found")

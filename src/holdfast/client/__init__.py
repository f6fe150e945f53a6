"""The Python client: publish, read and subscribe over the broker's HTTP port, through restarts.

::

    async with holdfast.connect("holdfast://127.0.0.1:8090") as broker:
        await broker.publish("orders", {"id": 17})
        async with broker.subscribe("orders", name="billing", start="earliest") as orders:
            async for order in orders:
                print(order.json())
                await order.ack()

The way of a publish: `client` → `producer` → `route` (which partition) → `lane` (what travels together)
→ `api` → `retry` → `pool` → `connection`. The way of a message back: `poller` → `buffer` →
`subscription` → `message`, and its acknowledgement: `ack_ranges` → `acks` → `api`.
"""

from holdfast.client.ack_ranges import TooManyOpenRanges
from holdfast.client.blocking import BlockingClient, connect_blocking
from holdfast.client.blocking_subscription import BlockingMessage, BlockingSubscription
from holdfast.client.client import Client, connect
from holdfast.client.descriptions import BrokerInfo
from holdfast.client.errors import (
    ClientClosed,
    OutcomeUnknown,
    PublishManyLost,
    PublishManyRefused,
    WrongPort,
)
from holdfast.client.message import Message, MessageBatch
from holdfast.client.results import PublishResults
from holdfast.client.subscription import Subscription
from holdfast.model.errors import CallerError, ConnectionLost, HoldfastError, RemoteError
from holdfast.model.messages import NewMessage, Published
from holdfast.model.topics import CursorDescription, TopicDescription

__all__ = [
    "BlockingClient",
    "BlockingMessage",
    "BlockingSubscription",
    "BrokerInfo",
    "CallerError",
    "Client",
    "ClientClosed",
    "ConnectionLost",
    "CursorDescription",
    "HoldfastError",
    "Message",
    "MessageBatch",
    "NewMessage",
    "OutcomeUnknown",
    "PublishManyLost",
    "PublishManyRefused",
    "PublishResults",
    "Published",
    "RemoteError",
    "Subscription",
    "TooManyOpenRanges",
    "TopicDescription",
    "WrongPort",
    "connect",
    "connect_blocking",
]

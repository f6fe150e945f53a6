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

A pair of brokers is spoken to over the text protocol: `pair_publisher` does what `failover` decides,
`pair_subscriber` hands out what `merging` makes of both brokers' messages. A `receiver` is connected to: it is the
other end of a callback.
"""

from holdfast.client.ack_ranges import TooManyOpenRanges
from holdfast.client.blocking import BlockingClient, connect_blocking
from holdfast.client.blocking_receiver import BlockingReceiver
from holdfast.client.blocking_subscription import BlockingMessage, BlockingSubscription
from holdfast.client.client import Client, connect
from holdfast.client.descriptions import BrokerInfo
from holdfast.client.errors import (
    AnswerLost,
    ClientClosed,
    MaybeStored,
    PublishManyLost,
    PublishManyRefused,
    TransactionAborted,
    WrongPort,
)
from holdfast.client.failover import Counts
from holdfast.client.message import Message, MessageBatch
from holdfast.client.pair import ConnectionChange
from holdfast.client.pair_publisher import PairPublished, PairPublisher
from holdfast.client.pair_subscriber import PairMessage, PairSubscriber
from holdfast.client.receiver import ReceivedMessage, Receiver
from holdfast.client.results import PublishResults
from holdfast.client.subscription import Subscription
from holdfast.client.transactions import BlockingTransaction, Transaction
from holdfast.model.callbacks import CallbackDescription
from holdfast.model.errors import (
    CallerError,
    ConnectionLost,
    HoldfastError,
    NotStored,
    OutcomeUnknown,
    Refused,
    RemoteError,
)
from holdfast.model.messages import NewMessage, Published
from holdfast.model.topics import CursorDescription, TopicDescription
from holdfast.model.transactions import CommitResult, StageReceipt, WriterDescription

__all__ = [
    "AnswerLost",
    "BlockingClient",
    "BlockingMessage",
    "BlockingReceiver",
    "BlockingSubscription",
    "BlockingTransaction",
    "BrokerInfo",
    "CallbackDescription",
    "CallerError",
    "Client",
    "ClientClosed",
    "CommitResult",
    "ConnectionChange",
    "ConnectionLost",
    "Counts",
    "CursorDescription",
    "HoldfastError",
    "MaybeStored",
    "Message",
    "MessageBatch",
    "NewMessage",
    "NotStored",
    "OutcomeUnknown",
    "PairMessage",
    "PairPublished",
    "PairPublisher",
    "PairSubscriber",
    "PublishManyLost",
    "PublishManyRefused",
    "PublishResults",
    "Published",
    "ReceivedMessage",
    "Receiver",
    "Refused",
    "RemoteError",
    "StageReceipt",
    "Subscription",
    "TooManyOpenRanges",
    "TopicDescription",
    "Transaction",
    "TransactionAborted",
    "WriterDescription",
    "WrongPort",
    "connect",
    "connect_blocking",
]

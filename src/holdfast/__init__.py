"""Holdfast: a message broker that keeps every acknowledged message.

`holdfast.connect("holdfast://127.0.0.1:8090")` is the client; `holdfast serve` on the command line is the
broker. Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import (
        BlockingClient,
        BlockingReceiver,
        Client,
        ConnectionLost,
        HoldfastError,
        Message,
        NewMessage,
        PairPublisher,
        PairSubscriber,
        Published,
        Receiver,
        RemoteError,
        connect,
        connect_blocking,
    )

__all__ = [
    "BlockingClient",
    "BlockingReceiver",
    "Client",
    "ConnectionLost",
    "HoldfastError",
    "Message",
    "NewMessage",
    "PairPublisher",
    "PairSubscriber",
    "Published",
    "Receiver",
    "RemoteError",
    "connect",
    "connect_blocking",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module("holdfast.client"), name)

"""Event loops to run a test on: uvloop, which brokers use, and at night asyncio's as well, which is supported too.

The two differ in when they write and in what they copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

from testkit.sizes import LONG

LoopFactories = dict[str, Callable[[], asyncio.AbstractEventLoop]]

ASYNCIO: LoopFactories = {"asyncio": asyncio.new_event_loop}
UVLOOP: LoopFactories = {"uvloop": uvloop.new_event_loop}
SUPPORTED: LoopFactories = {**UVLOOP, **ASYNCIO} if LONG else UVLOOP

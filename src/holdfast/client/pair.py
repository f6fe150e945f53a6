"""What publisher and subscriber of a pair have in common: two text addresses, lines, and news of connections."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from holdfast.client.addresses import Address, parse_text_address
from holdfast.model.errors import ConfigError, Internal, NotStored, OutcomeUnknown, codes_of
from holdfast.model.limits import MESSAGE_ID_BYTES_MAX, MIB

BROKERS_MAX: Final = 2
# The longest line that is taken from a broker: its largest message as base64, and far more than any broker is set to.
LINE_BYTES_MAX: Final = 64 * MIB + 4 * MESSAGE_ID_BYTES_MAX

_log = logging.getLogger("holdfast.client")


class ConnectionChange(NamedTuple):
    """A broker was lost, with the reason, or is there again.

    `gap_s`: for so long a subscriber without a name could not hear what may have been delivered to others.
    """

    broker: str
    is_connected: bool
    reason: str = ""
    gap_s: float | None = None

    def __str__(self) -> str:
        if self.is_connected:
            connected = f"connected to the broker at {self.broker}"
            if self.gap_s is None:
                return connected
            return (
                f"{connected} after {self.gap_s:.1f} s: messages published meanwhile may be missing here; "
                "a subscriber with a name gets them"
            )
        return f"lost the broker at {self.broker}: {self.reason}"


OnChange = Callable[[ConnectionChange], None]


def log_change(change: ConnectionChange) -> None:
    """What happens to news that nobody asked for."""
    _log.warning("%s", change)


def pair_addresses(brokers: Sequence[str]) -> dict[str, Address]:
    """One or two text addresses, by the name that the user gave them."""
    if not 1 <= len(brokers) <= BROKERS_MAX:
        raise ConfigError(
            f"{len(brokers)} addresses were given; give one for a plain broker or two for a pair. "
            "The nodes of a larger cluster are given to holdfast.connect"
        )
    addresses = {broker: parse_text_address(broker) for broker in brokers}
    if len(set(addresses.values())) < len(brokers):
        raise ConfigError(f"both addresses are {brokers[0]}; give that of the primary and that of the backup")
    return addresses


def passing_codes() -> frozenset[str]:
    """Codes of answers after which another try, or the other broker, may help."""
    passing = codes_of(NotStored) | codes_of(OutcomeUnknown) | {"too_many_connections", "half_line_timeout"}
    return passing - {Internal.code}


class LineConnection(asyncio.Protocol):
    """One connection: whole lines in, until it ends, for whatever reason. `ended` says which."""

    def __init__(self, on_lines: Callable[[LineConnection, list[bytes]], None]) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_lines = on_lines
        self._half_line = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, address: Address, timeout_s: float, on_lines: Callable[[LineConnection, list[bytes]], None]
    ) -> LineConnection:
        """Raises `OSError`, also where it takes too long."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(on_lines), address.host, address.port)
        except TimeoutError:
            raise OSError(f"no connection within {timeout_s * 1000:.0f} ms") from None
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._half_line += data
        end = self._half_line.rfind(b"\n")
        if end >= 0:
            lines = bytes(self._half_line[:end]).split(b"\n")
            del self._half_line[: end + 1]
            self._on_lines(self, lines)
        if len(self._half_line) > LINE_BYTES_MAX:
            self.end(f"a line has more than {LINE_BYTES_MAX} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("the broker closed the connection" if exc is None else str(exc) or type(exc).__name__)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause(self) -> None:
        """Take nothing more for now: whoever gets the lines has enough."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self, reason: str) -> None:
        """Hang up at once; nothing more is taken from this connection."""
        if not self.ended.done():
            self.ended.set_result(reason)
        if self._transport is not None:
            self._transport.abort()


def reason_of(error: OSError) -> str:
    """What a failed attempt to connect says, without the address that the caller names anyway."""
    # Where a name has several addresses, the reasons stand in the text only.
    number = error.errno or next(map(int, re.findall(r"\[Errno (\d+)\]", str(error))), 0)
    return os.strerror(number) if number > 0 else str(error.strerror or error)

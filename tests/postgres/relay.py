"""Stands between a broker and its database, and cuts their connections."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit


class Relay:
    """One that cuts nothing."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def cuts(self, data: bytes, connection: object, *, is_answer: bool) -> bool:
        """Whether a connection ends before this arrives."""
        return False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, upstream = await asyncio.open_unix_connection(self._path)

        async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter, *, is_answer: bool) -> None:
            while (data := await source.read(1 << 16)) and not self.cuts(data, reader, is_answer=is_answer):
                to.write(data)

        both = [
            asyncio.ensure_future(pass_on(reader, upstream, is_answer=False)),
            asyncio.ensure_future(pass_on(there, writer, is_answer=True)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            writer.close()
            upstream.close()


R = TypeVar("R", bound=Relay)


@asynccontextmanager
async def relayed(url: str, kind: type[R]) -> AsyncIterator[tuple[R, str]]:
    """A relay in front of a database that listens at a path, and the address at which it stands for it."""
    parts = urlsplit(url)
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    name = f".s.PGSQL.{asked.get('port', '5432')}"
    with tempfile.TemporaryDirectory(prefix="hf-") as place:
        relay = kind(Path(asked["host"]) / name)
        server = await asyncio.start_unix_server(relay.serve, f"{place}/{name}")
        async with server:
            yield relay, urlunsplit(parts._replace(query=urlencode({**asked, "host": place})))

"""Holdfast itself: one broker with a text and an HTTP port and the chosen sync policy."""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.load import http, text
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.wire import FixedLength
from benchmarks.process import HOST, Server, running, scratch
from holdfast.testing.ports import free_port

NAME = "holdfast"
HINT = "pip install -e ."

REQUEST_LINES = 1_000


def binary() -> str | None:
    beside = Path(sys.executable).parent / "holdfast"
    return str(beside) if beside.exists() else shutil.which("holdfast")


def missing() -> str | None:
    return None if binary() else HINT


def version() -> str:
    try:
        return installed_version("holdfast")
    except PackageNotFoundError:
        return "unknown"


def source_digest() -> str:
    """Names the code that is measured: two runs with the same digest measured the same broker."""
    found = find_spec("holdfast")
    digest = hashlib.sha256()
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Holdfast:
    server: Server
    text_port: int
    http_port: int

    def stored(self, topic: str) -> int:
        return int(http.ask(self.http_port, http.get(f"/v1/topics/{topic}"))["messages"])

    def text_pipeline(
        self, topic: str, connections: int, window: int, seconds: float, messages_max: int = 1 << 62
    ) -> Pipeline:
        """Lines as fast as the window lets them go."""
        lines = min(REQUEST_LINES, window)
        return Pipeline(
            port=self.text_port,
            dial=text.dial,
            replies=partial(FixedLength, text.PUBACK),
            request=text.publishes(topic, lines),
            messages_per_request=lines,
            window=window,
            connections=connections,
            seconds=seconds,
            messages_max=messages_max,
        )

    def http_pipeline(
        self, topic: str, connections: int, depth: int, messages_per_request: int, seconds: float
    ) -> Pipeline:
        """Keep-alive requests, `depth` of them under way on each connection."""
        return Pipeline(
            port=self.http_port,
            dial=http.dial,
            replies=partial(http.PublishReplies, messages_per_request),
            request=http.publish(topic, messages_per_request),
            messages_per_request=messages_per_request,
            window=depth * messages_per_request,
            connections=connections,
            seconds=seconds,
        )


@contextmanager
def serve(parent: Path | None, sync: str, *flags: str) -> Iterator[Holdfast]:
    """`sync` is the broker's own word: group, none or interval:MS; `flags` are any others."""
    with scratch(parent) as directory:
        ready_path = directory / "ready.json"
        command = [
            binary() or "holdfast",
            "serve",
            *("--data", str(directory / "data")),
            *("--text", f"{HOST}:{free_port()}"),
            *("--http", f"{HOST}:{free_port()}"),
            *("--sync", sync),
            *("--ready-file", str(ready_path)),
            *flags,
        ]
        with running(command, directory) as server:
            server.wait_until(lambda: ready_path.exists() and bool(ready_path.read_text().strip()))
            ready = json.loads(ready_path.read_text())
            ports = [int(ready[key].rpartition(":")[2]) for key in ("text", "http")]
            yield Holdfast(server, *ports)

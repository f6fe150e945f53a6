"""`holdfast proxy` as people start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from testkit.http_client import Client
from testkit.wait import wait_until

COMMAND = [sys.executable, "-m", "holdfast.cli", "proxy"]


def test_proxy_serves_says_where_and_leaves_when_it_is_told(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    # Nobody listens at the discard port: it has to serve all the same, and say so.
    command = [*COMMAND, "--listen", "127.0.0.1:0", "--groups", "a=127.0.0.1:9", "--ready-file", str(ready), "--quiet"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "HOLDFAST_LOOP": "uvloop"})
    try:
        wait_until(ready.exists, "the proxy listens")
        proxy = Client(int(json.loads(ready.read_text())["http"].rpartition(":")[2]))
        assert proxy.get("/health").json == {"status": "alive"}
        wait_until(lambda: proxy.get("/ready").status == 503, "it knows that nobody is there")
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait(30)
    assert running.returncode == 0, said
    assert b"node_down" in said and not ready.exists()


def test_groups_that_make_no_sense_are_named(tmp_path: Path) -> None:
    ran = subprocess.run([*COMMAND, "--groups", "nonsense"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "name=host:port" in ran.stderr

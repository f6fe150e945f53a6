"""A recovery whose driver is killed goes on where it was: the short form of `make chaos-recover`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from chaos import recover

from tests.support.postgres import Server

KILLS = 2
MESSAGES = 70_000


@pytest.mark.spark
@pytest.mark.timeout(300)
async def test_recovery_that_is_killed_stores_every_message_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
    server = Server(tmp_path / "postgres", "fsync=off", "autovacuum=off")
    await server.start()
    try:
        outcome = await recover.round_of_kills(
            server.url, tmp_path / "spills", random.Random(20261118), MESSAGES, KILLS
        )
    finally:
        server.kill()
    assert outcome.wrong is None
    assert any(0 < stored < MESSAGES for stored in outcome.stored_at_kills), "it was killed in the middle"

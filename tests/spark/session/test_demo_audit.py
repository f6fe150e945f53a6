"""The demos' verdicts, checked by the audit: what they wrote down themselves proves that nothing was lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast import pipelines
from tests.cli.program import Ended, holdfast

DEMOS = {
    "broker": ("--seconds", "4"),
    "failover": ("--kill-after", "2s", "--then", "2s", "--rate", "20"),
    "outage": ("--seconds", "5", "--rate", "50"),
    "membership": ("--scene", "one-subscriber", "--scene", "fault-tolerance"),
    "cluster": ("--seconds", "5", "--kill-after", "1", "--back-after", "2", "--rate", "50"),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ended, Path]]:
    """All of them at the same time: most of it is waiting."""
    root = tmp_path_factory.mktemp("demos")

    def play(name: str) -> tuple[Ended, Path]:
        out = () if name in ("broker", "membership") else ("--out", str(root / name))
        return holdfast("demo", name, *DEMOS[name], *out, "--record", str(root / name), "--json"), root / name

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(DEMOS, threads.map(play, DEMOS), strict=True))


# Two of the demos have a topic of one name, and what is audited together must be of one run.
@pytest.mark.parametrize("names", [("broker", "failover", "outage", "membership"), ("cluster",)], ids="-".join)
def test_audit_comes_to_the_verdict_of_the_demo(
    names: tuple[str, ...], played: dict[str, tuple[Ended, Path]], spark: SparkSession
) -> None:
    verdict = pipelines.audit(
        spark,
        sent=[str(played[name][1] / "sent.ndjson") for name in names],
        received=[str(played[name][1] / "received.ndjson") for name in names],
        every_receiver=True,
    )
    told = [played[name][0].json for name in names]
    assert verdict.counts["sent"] == sum(each["sent"] for each in told) > 50
    assert verdict.counts["acknowledged"] == sum(each["acknowledged"] for each in told)
    # A live reader of the broker that was killed may see its last message again, and its demo says so.
    repeated = sum(reader["duplicated"] for each in told for reader in each.get("readers", {}).values())
    assert verdict.counts["duplicated"] == repeated
    assert verdict.is_flawless(allowed=["duplicated"]), verdict.as_json()["examples"]

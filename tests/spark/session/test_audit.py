"""The audit finds every planted flaw and nothing else: held against plain Python, on random logs and bad input."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import pipelines
from holdfast.model.errors import HoldfastError
from holdfast.pipelines import audit_page, audit_rules
from holdfast.pipelines.audit_verdict import EXAMPLES_MAX, Verdict
from tests.spark import audit_by_hand
from tests.spark.audit_by_hand import COUNTS, random_log, write

CASES = 200


def counted(verdict: Verdict, topic: str) -> dict[str, int]:
    """One topic's part of a verdict."""
    rows = [row for row in verdict.topics if row["topic"] == topic]
    return {name: sum(row[name] for row in rows) for name in COUNTS}


@pytest.mark.parametrize("runs_sent_max", [audit_rules.RUNS_SENT_MAX, 0])
def test_verdict_is_what_plain_python_finds(
    runs_sent_max: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many random logs in one job: everything is judged within a topic, so each log has one of its own."""
    monkeypatch.setattr(audit_rules, "RUNS_SENT_MAX", runs_sent_max)
    dice = random.Random(20261116)
    logs = {f"case-{number}": random_log(dice, f"case-{number}") for number in range(CASES)}
    sent = [line for log, _ in logs.values() for line in log]
    received = [line for _, log in logs.values() for line in log]
    # Several files: what a receiver got is in order over all of them, by their names and as they are given.
    third = len(received) // 3
    pieces = (received[:third], received[third : 2 * third], received[2 * third :])
    names = ("received/1 of 2.ndjson", "received/2 of 2.ndjson", "last.ndjson")
    places = [write(tmp_path / name, lines) for name, lines in zip(names, pieces, strict=True)]
    verdict = pipelines.audit(
        spark, sent=[write(tmp_path / "sent.ndjson", sent)], received=[str(tmp_path / "received"), places[2]]
    )
    wrong = {}
    for topic, (given, came) in logs.items():
        expected = audit_by_hand.verdict(given, came)
        found = counted(verdict, topic)
        missed = sum(row["missed"] for row in verdict.receivers if row["topic"] == topic)
        if found != {name: expected[name] for name in COUNTS} or missed != expected["missed"]:
            wrong[topic] = (found, expected, given, came)
    assert not wrong, next(iter(wrong.items()))
    expected = audit_by_hand.verdict(sent, received)
    told = verdict.as_json()
    assert {name: told[name] for name in (*COUNTS, "resent", "delivered")} == {
        name: expected[name] for name in (*COUNTS, "resent", "delivered")
    }
    assert min(told[name] for name in COUNTS) > 10, "the logs had every flaw"
    assert {name: len(each) for name, each in verdict.examples.items()} == dict.fromkeys(COUNTS[3:], EXAMPLES_MAX)
    page = audit_page.drawn(verdict)
    assert page.count("<svg") == 3 and "prefers-color-scheme: dark" in page and "http" not in page


def test_audit_of_many_streams_sends_none_of_them_to_everybody(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many streams as messages must not have to fit into one process."""
    names = dict.fromkeys(("receiver", "topic", "producer", "id"), "cast(id as string)")
    numbers = dict.fromkeys(("partition", "stretch", "sequence", "received_ms", "sent_ms", "copies", "place"), "id")
    rows = spark.range(1).selectExpr(*(f"{value} as {name}" for name, value in (names | numbers).items()))
    for count, expected in ((audit_rules.RUNS_SENT_MAX, True), (audit_rules.RUNS_SENT_MAX + 1, False)):
        audit_rules.late(rows, audit_rules.runs(rows), count).explain()
        assert ("Broadcast" in capsys.readouterr().out) is expected


def test_every_receiver_must_have_everything_where_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    sent = [{"topic": "t", "id": f"p/{n}", "sequence": n, "time_ms": n, "acknowledged": True} for n in range(4)]
    received = [{"topic": "t", "id": f"p/{n}", "time_ms": n, "receiver": "all"} for n in range(4)]
    received += [{"topic": "t", "id": f"p/{n}", "time_ms": n, "receiver": "some"} for n in (0, 3)]
    files: dict[str, Any] = {
        "sent": [write(tmp_path / "sent.ndjson", sent)],
        "received": [write(tmp_path / "received.ndjson", received)],
    }
    strict = pipelines.audit(spark, **files, every_receiver=True)
    assert strict.counts["lost"] == 2 == strict.counts["missed"]
    assert [(each["id"], each["receiver"]) for each in strict.examples["lost"]] == [("p/1", "some"), ("p/2", "some")]
    assert audit_by_hand.verdict(sent, received, every_receiver=True)["lost"] == 2
    assert audit_by_hand.verdict(sent, received)["lost"] == 0 == sum(row["lost"] for row in strict.topics)


def test_lines_that_are_no_records_are_counted_and_shown(spark: SparkSession, tmp_path: Path) -> None:
    sent = [{"topic": "t", "id": "a", "sequence": 1, "time_ms": 1, "acknowledged": True}]
    received = [{"topic": "t", "id": "a", "time_ms": 3}, {"topic": "t"}, {"topic": "t", "id": "a", "time_ms": "soon"}]
    verdict = pipelines.audit(
        spark,
        sent=[write(tmp_path / "sent.ndjson", sent, more='{"topic": "t", "id": "b", "sequ')],
        received=[write(tmp_path / "received.ndjson", received)],
    )
    assert (verdict.counts["malformed"], verdict.counts["lost"], verdict.counts["received"]) == (3, 0, 1)
    assert not verdict.is_flawless() and verdict.is_flawless(allowed=["malformed"])
    shown = {(each["side"], each["line"][:12]) for each in verdict.examples["malformed"]}
    assert ("sent", '{"topic": "t') in shown and len(shown) == 3 - 1 + 1
    assert verdict.latency_ms["p50"] == 2 == verdict.latency_ms["max"]


def test_parquet_is_read_as_lines_are(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(7)
    sent, received = next(log for log in iter(lambda: random_log(dice, "t"), None) if log[0] and log[1])
    spark.createDataFrame(sent).coalesce(1).write.parquet(str(tmp_path / "sent"))
    spark.createDataFrame(received).coalesce(1).write.parquet(str(tmp_path / "received"))
    verdict = pipelines.audit(spark, sent=[str(tmp_path / "sent")], received=[f"{tmp_path}/received/*.parquet"])
    expected = audit_by_hand.verdict(sent, received)
    assert counted(verdict, "t") == {name: expected[name] for name in COUNTS}
    with pytest.raises(HoldfastError, match="no column id") as refused:
        spark.createDataFrame([("t",)], "topic string").write.parquet(str(tmp_path / "bad"))
        pipelines.audit(spark, sent=[str(tmp_path / "bad")], received=[str(tmp_path / "received")])
    assert refused.value.code == "bad_records"


def test_input_that_proves_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    nothing, something = write(tmp_path / "nothing", []), write(tmp_path / "something", [], more="what is this?\n")
    for sent, code, words in (
        (str(tmp_path / "missing*"), "records_not_found", "leads to no file"),
        (nothing, "bad_records", "are empty"),
        (something, "bad_records", "what is this"),
    ):
        with pytest.raises(HoldfastError, match=words) as refused:
            pipelines.audit(spark, sent=[sent], received=[nothing])
        assert refused.value.code == code

"""The audit finds every planted flaw and nothing else: held against plain Python, on random logs and bad input."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from holdfast import pipelines
from holdfast.model.errors import HoldfastError
from holdfast.pipelines import audit_page, audit_rules, record_files
from holdfast.pipelines.audit_verdict import EXAMPLES_MAX, Verdict
from tests.spark import audit_by_hand
from tests.spark.audit_by_hand import COUNTS, random_log, write

CASES = 200


def counted(verdict: Verdict, topic: str) -> dict[str, int]:
    """One topic's part of a verdict."""
    rows = [row for row in verdict.topics if row["topic"] == topic]
    return {name: sum(row[name] for row in rows) for name in COUNTS}


@pytest.mark.parametrize("runs_sent_max", [audit_rules.RUNS_SENT_MAX, pytest.param(0, marks=pytest.mark.night)])
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


RECORD = '{"topic":"t","id":"a","sequence":1,"acknowledged":true}'
SECOND = RECORD.replace('"a"', '"b"')
NO_RECORDS = [
    *(RECORD + more for more in (SECOND, f" {SECOND}", f",{SECOND}", f'],"lines":[{SECOND}', '{"last":""}')),
    *(RECORD + more for more in ("xx", " {", "]", "]}", "}", ",", "//")),
    f"[{RECORD}]",
    *("5", "null", '"a"', "{}", "[]", "xx", RECORD[:-1]),
    *(
        RECORD.replace('"a"', value)
        for value in ("7", "1.5", "true", '["a"]', '{"a":1}', '"a\x01"', '"a\udcff"', "'a'")
    ),
    *(RECORD.replace('"t"', value) for value in ("7", "false", "{}", "null")),
    *(RECORD.replace("1", value) for value in ('"1"', "1.0", "1e0", "NaN", "true", "9223372036854775808", "null")),
    *(RECORD.replace("true", value) for value in ('"true"', "1", "null")),
    *(RECORD.replace("}", f",{more}}}") for more in ('"producer":5', '"partition":2147483648', '"time_ms":"soon"')),
]
RECORDS = [
    f"  {RECORD}\t",
    RECORD.replace(":", " : "),
    RECORD.replace('"a"', '"\\u0061"'),
    RECORD.replace("}", ',"other":[1,{"last":"}{"}],"producer":null}'),
    RECORD.replace("}", ',"time_ms":1}'),
]


def test_line_that_is_no_record_is_counted_and_shown_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    """A message behind the first object of a line is not passed over either."""
    sent = tmp_path / "sent.ndjson"
    cut_short = RECORD[:-9]
    text = "".join(f"{line}\n" for line in (*NO_RECORDS, *RECORDS, "", " ")) + cut_short
    sent.write_bytes(text.encode("utf-8", "surrogateescape"))
    records = record_files.sent_from_files(spark, [str(sent)])
    assert [row["id"] for row in records.good.collect()] == ["a"] * len(RECORDS)
    shown = [line.replace("\udcff", "\ufffd") for line in (*NO_RECORDS, cut_short)]
    assert [row["line"] for row in records.malformed.collect()] == [line[:200] for line in shown]
    message: dict[str, Any] = {"topic": "t", "id": "a"}
    received = [{**message, "time_ms": 3}, {"topic": "t"}, {**message, "time_ms": "soon"}]
    verdict = pipelines.audit(spark, sent=[str(sent)], received=[write(tmp_path / "received.ndjson", received)])
    assert (verdict.counts["malformed"], verdict.counts["lost"], verdict.counts["received"]) == (len(shown) + 2, 0, 1)
    assert not verdict.is_flawless() and verdict.is_flawless(allowed=["malformed"])
    told = [(each["side"], each["line"]) for each in verdict.examples["malformed"]]
    assert told == [("sent", line) for line in shown[:EXAMPLES_MAX]]
    assert verdict.latency_ms["p50"] == 2 == verdict.latency_ms["max"]


def test_parquet_is_read_as_lines_are(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(7)
    sent, received = next(log for log in iter(lambda: random_log(dice, "t"), None) if log[0] and log[1])
    expected = audit_by_hand.verdict(sent, received)
    # What no message can have is malformed: it is never made into something else.
    impossible = [{**sent[0], "partition": 2**31}, {**sent[0], "id": b"\xff"}]
    table = pa.Table.from_pylist([{**line, "id": line["id"].encode()} for line in sent] + impossible)
    for name, rows in (("sent", table), ("received", pa.Table.from_pylist(received))):
        (tmp_path / name).mkdir()
        pq.write_table(rows, tmp_path / name / "part-0.parquet")
    verdict = pipelines.audit(spark, sent=[str(tmp_path / "sent")], received=[f"{tmp_path}/received/*.parquet"])
    assert counted(verdict, "t") == {name: expected[name] for name in COUNTS}
    assert verdict.counts["malformed"] == 2


def test_parquet_columns_of_another_type_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    received = write(tmp_path / "received.ndjson", [{"topic": "t", "id": "a"}])
    record = {"topic": "t", "id": "a", "sequence": 1, "acknowledged": True}
    for number, (name, value) in enumerate(
        (("id", 7), ("topic", {"a": 1}), ("sequence", 1.5), ("acknowledged", "true"))
    ):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist([{**record, name: value}]), path)
        with pytest.raises(HoldfastError, match=f"the column {name} is ") as refused:
            pipelines.audit(spark, sent=[str(path)], received=[received])
        assert refused.value.code == "bad_records"
    pq.write_table(pa.Table.from_pylist([{"topic": "t"}]), tmp_path / "bad.parquet")
    with pytest.raises(HoldfastError, match="no column id") as refused:
        pipelines.audit(spark, sent=[str(tmp_path / "bad.parquet")], received=[received])
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

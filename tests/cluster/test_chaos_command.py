"""`python -m chaos` lists its campaigns, each says what it is told, and a report says what was found."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest
from chaos.__main__ import CAMPAIGNS, main
from chaos.campaigns import recover, spark, transform
from chaos.campaigns.soak import grown
from chaos.report import Report, add_options
from chaos.run import Outcome
from testkit import records
from testkit.checker import check
from testkit.history import History
from testkit.machine import CannotBreak

ROOT = Path(__file__).parents[2]


def test_every_campaign_is_listed_documented_and_told_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    listed = capsys.readouterr().out
    documented = (ROOT / "docs" / "chaos.md").read_text("utf-8")
    assert ended.value.code == 0
    for name, campaign in CAMPAIGNS.items():
        assert f"python -m chaos {name} {campaign.example}" in listed
        assert f"`{name}`" in documented
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        told = capsys.readouterr().out
        assert ended.value.code == 0 and campaign.example.split()[0] in told
        assert all(option in told for option in ("--seed", "--records", "--results", "--json"))


def test_campaign_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nothing"])
    assert ended.value.code == 2 and "cluster" in capsys.readouterr().err


def report_in(directory: Path) -> Report:
    parser = argparse.ArgumentParser()
    add_options(parser)
    words = ["--results", str(directory), "--records", str(directory / "records"), "--seed", "7", "--json"]
    return Report("cluster", parser.parse_args(words))


def outcome_of(history: History) -> Outcome:
    return Outcome(7, "python -m chaos cluster --seed 7", history, check(history), logs={"n1": "the log of n1"})


def test_report_of_a_run_that_is_not_clean_has_all_to_look_into_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History()
    book = history.producer("p", "t")
    book.acknowledge(book.send(1, 1.0)[0], 1.5)
    report = report_in(tmp_path)
    report.add(outcome_of(history))
    assert report.finish() == 0
    history.stalls.append("nothing was acknowledged")
    report.add(outcome_of(history))
    capsys.readouterr()
    assert report.finish() == 1
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((report.directory / "report.json").read_text("utf-8"))
    assert told["violations"]["did not go on"] == 1 and len(told["runs"]) == 2
    kept = report.directory / "cluster-7"
    assert (kept / "n1.log").read_text("utf-8") == "the log of n1"
    assert len(records.read(kept / "sent.ndjson")) == 1
    assert len(records.read(tmp_path / "records" / "cluster-7" / "sent.ndjson")) == 1


def test_run_that_is_impossible_here_is_neither_clean_nor_broken(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    with report.attempt("again", ["power loss"]):
        raise CannotBreak("there is no mkfs")
    assert report.finish() == 2
    assert report.skipped == {"power loss": "there is no mkfs"}


def test_campaign_without_any_run_is_no_success(tmp_path: Path) -> None:
    assert report_in(tmp_path).finish() == 2


def test_run_in_which_nothing_was_acknowledged_is_not_clean(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    history = History()
    history.producer("p", "t").send(1, 1.0)
    report.add(outcome_of(history))
    assert report.finish() == 1 and report.verdict.counts["did not go on"] == 1


def test_run_that_breaks_off_is_told_in_the_report(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    with report.attempt("again"):
        raise AssertionError("not within 240 s: batches go on")
    assert report.finish() == 1
    assert "batches go on" in (report.directory / "report.json").read_text("utf-8")


# --- what pipelines are held against ----------------------------------------------------------------------------------


def test_recovery_that_loses_repeats_or_reorders_is_found() -> None:
    expected = {("orders", 0): [b"orders-0/0", b"orders-0/1", b"orders-0/2"]}

    def found(values: list[bytes]) -> list[str]:
        return [each.kind for each in check(recover.as_history(expected, {("orders", 0): values})).examples]

    assert found(expected["orders", 0]) == []
    assert found([]) == ["acknowledged and lost"] * 3
    reordered = ["not where it was acknowledged"] * 2 + ["out of order of a producer"]
    assert found([b"orders-0/0", b"orders-0/2", b"orders-0/1"]) == reordered
    assert found([b"orders-0/0", b"orders-0/1", b"orders-0/2", b"orders-0/2"]) == ["stored twice"]


def test_recovery_into_another_partition_is_found() -> None:
    expected = {("orders", 0): [b"orders-0/0", b"orders-0/1"], ("orders", 1): [b"orders-1/0"]}
    moved = {("orders", 0): [b"orders-0/0"], ("orders", 1): [b"orders-1/0", b"orders-0/1"]}
    (found,) = check(recover.as_history(expected, moved)).examples
    assert found.kind == "not where it was acknowledged" and "orders-0/1" in found.detail


def test_transform_that_loses_repeats_or_invents_is_found() -> None:
    expected = {"made": Counter({b"2": 1, b"4": 1})}

    def found(counts: dict[bytes, int]) -> list[str]:
        history = transform.as_history({"made": Counter(counts)}, expected)
        return [each.kind for each in check(history, transform.PROMISED).examples]

    assert found({b"2": 1, b"4": 1}) == []
    assert found({b"2": 1}) == ["acknowledged and lost"]
    assert found({b"2": 1, b"4": 2}) == ["stored twice"]
    assert found({b"2": 1, b"4": 1, b"5": 1}) == ["never sent"]


def test_only_files_that_a_query_committed_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for name, files in {"9.compact": "ab", "8": "b", "10": "c"}.items():
        lines = [json.dumps({"path": f"file:///rows/{each}.parquet", "action": "add"}) for each in files]
        (log / name).write_text("\n".join(["v1", *lines]), "utf-8")
    assert [path.name for path in spark.committed_files(tmp_path)] == ["a.parquet", "b.parquet", "c.parquet"]


def test_memory_that_grows_is_found() -> None:
    mib = 1 << 20
    even: list[dict[str, int]] = [{"java": 900 * mib}, *[{"java": 500 * mib}] * 3]
    assert list(grown(even)) == []
    assert len(list(grown([*even[:3], {"java": 600 * mib}]))) == 1

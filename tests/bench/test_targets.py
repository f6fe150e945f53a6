"""A verdict that is wrong makes people trust a figure nobody measured."""

import pytest
from benchmarks.figures import FIGURES
from benchmarks.measure import Contender, Line, Measured, Settings, Work, WorkResult
from benchmarks.targets import TARGETS, Verdict, judge, short_works
from benchmarks.works import ALL


def _never(_settings: Settings) -> Measured:
    raise AssertionError("nothing is run here")


def _result(work_name: str, lines: dict[str, list[float]], figure: str = "msg_per_s") -> WorkResult:
    real = next(work for work in ALL if work.name == work_name)
    work = Work(
        name=work_name,
        title=real.title,
        figure=figure,
        reference=real.reference,
        contenders=tuple(Contender(name, "holdfast", "", _never) for name in lines),
    )
    # Three times the same: fewer than three rounds are not judged.
    rounds = {name: {figure: values * 3} if values else {} for name, values in lines.items()}
    return WorkResult(work, tuple(Line(name, "holdfast", "", found) for name, found in rounds.items()))


def _verdict(name: str, *results: WorkResult, objection: str = "") -> Verdict:
    return next(verdict for verdict in judge(results, objection) if verdict.target.name == name)


def test_every_target_names_lines_that_the_suite_really_runs() -> None:
    there = {(work.name, contender.name) for work in ALL for contender in work.contenders}
    for target in TARGETS:
        named = {(figure.work, figure.contender) for figure in (target.ours, target.theirs) if figure is not None}
        if target.or_contender:
            named.add((target.ours.work, target.or_contender))
        assert named <= there, target.name


def test_every_line_is_compared_with_a_line_of_its_work() -> None:
    for work in ALL:
        names = {contender.name for contender in work.contenders}
        assert {contender.against or work.reference for contender in work.contenders} <= names, work.name


def test_every_limit_lies_where_a_figure_is_worse() -> None:
    for target in TARGETS:
        work = next(work for work in ALL if work.name == target.ours.work)
        kind = FIGURES[target.ours.figure or work.figure]
        assert target.sense == {"higher": "at least", "lower": "at most"}[kind.better], target.name
        assert target.ours.figure or work.better == kind.better, target.name


def test_a_ratio_at_the_limit_is_kept_and_below_it_missed() -> None:
    kept = _result("publish-durable", {"Holdfast text": [4.0, 4.0], "Redis Streams": [1.0, 1.0]})
    missed = _result("publish-durable", {"Holdfast text": [3.9, 3.9], "Redis Streams": [1.0, 1.0]})
    assert _verdict("text-durable", kept).passed is True
    assert _verdict("text-durable", missed).passed is False


def test_a_latency_above_its_limit_is_missed() -> None:
    lines = {"Holdfast text": [31.0], "Redis Streams": [20.0]}
    assert _verdict("latency-nosync", _result("latency-nosync", lines, "p50_us")).passed is False


def test_one_disturbed_round_does_not_move_the_median() -> None:
    lines = {"Holdfast text": [5.0, 0.1, 5.0], "Redis Streams": [1.0, 1.0, 1.0]}
    assert _verdict("text-durable", _result("publish-durable", lines)).measured == 5.0


def test_a_pass_that_only_a_disturbed_peer_allows_is_not_a_pass() -> None:
    lines = {"Holdfast text": [38.0, 46.0, 90.0], "Redis Streams": [70.0, 23.0, 77.0]}
    verdict = _verdict("latency-nosync", _result("latency-nosync", lines, "p50_us"))
    assert verdict.passed is None
    assert verdict.reason.startswith("unsteady")


def test_a_missing_peer_is_named_in_place_of_a_verdict() -> None:
    result = _result("publish-durable", {"Holdfast text": [5.0], "Redis Streams": []})
    result.lines[1].problem = "not installed: apt install redis-server"
    verdict = _verdict("text-durable", result)
    assert verdict.passed is None
    assert "apt install redis-server" in verdict.reason


def test_a_run_with_an_objection_has_figures_but_no_verdict() -> None:
    lines = {"Holdfast text": [5.0], "Redis Streams": [1.0]}
    verdict = _verdict("text-durable", _result("publish-durable", lines), objection="the code changed")
    assert (verdict.passed, verdict.measured, verdict.reason) == (None, 5.0, "the code changed")


@pytest.mark.parametrize(("text", "http"), [([12.0], [3.0]), ([3.0], [12.0]), ([], [12.0])])
def test_the_better_of_two_ways_counts(text: list[float], http: list[float]) -> None:
    lines = {"Holdfast text": text, "Holdfast HTTP batches": http, "NATS JetStream R3": [1.0]}
    verdict = _verdict("cluster-publish-nats", _result("cluster-publish", lines))
    assert (verdict.ours, verdict.measured, verdict.passed) == (12.0, 12.0, True)


def test_a_short_run_has_every_line_that_its_targets_need() -> None:
    works = {work.name: {one.name for one in work.contenders} for work in short_works(ALL)}
    short = [target for target in TARGETS if target.is_short]
    assert all(target.contenders <= works[target.ours.work] for target in short)
    assert sum(map(len, works.values())) < 25
    # Something of every part that has targets at all.
    parts = {target.ours.work.partition("-")[0] for target in TARGETS}
    assert parts == {name.partition("-")[0] for name in works}


@pytest.mark.parametrize(
    ("rounds", "shares", "reason"),
    [
        ([5.0, 5.0], [0.0, 0.0], "2 of at least 3 rounds"),
        ([5.0] * 4, [0.5, 0.2, 0.0, 0.0], "others had up to 50% of the machine in 2 of 4 rounds"),
        ([5.0] * 3, [0.0, 0.5, 0.0], ""),
    ],
)
def test_few_or_mostly_disturbed_rounds_are_not_judged(rounds: list[float], shares: list[float], reason: str) -> None:
    result = _result("publish-durable", {"Holdfast text": [5.0], "Redis Streams": [1.0]})
    result.lines[0].rounds, result.lines[0].foreign_shares = {"msg_per_s": rounds}, shares
    verdict = _verdict("text-durable", result)
    assert (verdict.reason, verdict.passed) == (reason, None if reason else True)


def test_a_line_that_failed_in_a_later_round_is_not_judged() -> None:
    result = _result("publish-durable", {"Holdfast text": [5.0], "Redis Streams": [1.0]})
    result.lines[0].problem = "failed: the broker ended"
    verdict = _verdict("text-durable", result)
    assert (verdict.reason, verdict.passed) == ("failed: the broker ended", None)


def test_works_that_were_not_run_have_no_verdict() -> None:
    lines = {"Holdfast text": [5.0], "Redis Streams": [1.0]}
    judged = {verdict.target.ours.work for verdict in judge([_result("publish-durable", lines)])}
    assert judged == {"publish-durable"}

"""A comparison that sees a difference in noise, or none where there is one, sends people the wrong way."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compare
from benchmarks.publish import RESULTS

MACHINE = {"cores": 2, "cpu": "Some CPU", "kernel": "6.1", "filesystem": "ext4", "python": "3.11.0"}


def _result(figures: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    line = {"contender": "Holdfast text", "rounds": figures}
    return {
        "machine": MACHINE,
        "settings": {"seconds": 2.0},
        "peers": {"holdfast": {"source": "abc"}},
        "works": [{"name": "publish-durable", "better": "higher", "lines": [line]}],
        **more,
    }


def _verdict(figure: str, before: list[float], after: list[float]) -> str:
    (found,) = compare.compare(_result({figure: before}), _result({figure: after}))
    return found.verdict


def test_rounds_that_overlap_are_no_difference() -> None:
    assert _verdict("msg_per_s", [10.0, 11.0, 14.0], [13.0, 15.0, 16.0]) == "no difference"
    assert _verdict("msg_per_s", [13.0, 15.0, 16.0], [10.0, 11.0, 13.0]) == "no difference"


@pytest.mark.parametrize(("figure", "verdict"), [("msg_per_s", "better"), ("p50_us", "worse"), ("rss_mb", "worse")])
def test_whether_more_is_better_depends_on_the_figure(figure: str, verdict: str) -> None:
    opposite = {"better": "worse", "worse": "better"}[verdict]
    assert _verdict(figure, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == verdict
    assert _verdict(figure, [4.0, 5.0, 6.0], [1.0, 2.0, 3.0]) == opposite


def test_too_few_rounds_give_no_verdict() -> None:
    assert _verdict("msg_per_s", [1.0, 1.0], [5.0, 6.0, 7.0]).startswith("not known")


def test_the_change_is_that_of_the_medians() -> None:
    (found,) = compare.compare(_result({"msg_per_s": [9.0, 10.0, 30.0]}), _result({"msg_per_s": [1.0, 15.0, 16.0]}))
    assert (found.before.median, found.after.median) == (10.0, 15.0)
    assert found.change_pct == pytest.approx(50.0)
    assert (found.before.lowest, found.before.highest) == (9.0, 30.0)


def test_figures_that_only_one_result_has_are_left_out() -> None:
    found = compare.compare(_result({"msg_per_s": [1.0], "p50_us": [1.0]}), _result({"msg_per_s": [2.0]}))
    assert [one.figure for one in found] == ["msg_per_s"]


def test_what_makes_results_hard_to_compare_is_named() -> None:
    disturbed = _result({"msg_per_s": [1.0]}, objections=["it is a quick run", "others were busy"])
    elsewhere = _result({"msg_per_s": [1.0]}, machine={**MACHINE, "cpu": "Other"}, settings={"seconds": 1.0})
    found = compare.warnings(disturbed, elsewhere)
    assert found == [
        "the first is not fit to be published: it is a quick run and 1 more",
        "the machines differ: cpu",
        "runs took 2 s and 1 s",
    ]
    assert compare.warnings(elsewhere, elsewhere) == []


def _files(directory: Path, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    paths = [directory / "a.json", directory / "b.json"]
    for path, result in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(result))
    return [str(path) for path in paths]


def test_a_figure_that_got_worse_can_end_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, _result({"msg_per_s": [9.0, 9.0, 9.0]}), _result({"msg_per_s": [1.0, 1.0, 1.0]}))
    assert compare.main(files) == 0
    assert compare.main([*files, "--check"]) == 1
    assert compare.main([files[0], files[0], "--check"]) == 0
    assert "worse" in capsys.readouterr().out


def test_results_of_too_few_rounds_pass_no_check(tmp_path: Path) -> None:
    files = _files(tmp_path, _result({"msg_per_s": [9.0]}), _result({"msg_per_s": [1.0]}))
    assert compare.main([*files, "--check"]) == 2


def test_a_line_that_fails_in_the_second_result_is_no_silence(tmp_path: Path) -> None:
    before, after = (_result({"msg_per_s": [9.0, 9.0, 9.0], "p50_us": [1.0, 1.0, 1.0]}) for _ in range(2))
    line = after["works"][0]["lines"][0]
    line["problem"], line["rounds"] = "failed: the broker ended", {"p50_us": [1.0]}
    assert "publish-durable, Holdfast text: failed: the broker ended" in compare.warnings(before, after)
    assert compare.main([*_files(tmp_path, before, after), "--check"]) == 1


def test_programs_get_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = {"described": "v1-3-gabc", "is_clean": False}
    files = _files(tmp_path, _result({"p50_us": [9.0, 9.0, 9.0]}), _result({"p50_us": [1.0, 1.0, 1.0]}, code=code))
    assert compare.main([*files, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["second"] == "v1-3-gabc, with changes, code abc"
    assert [(one["figure"], one["verdict"]) for one in told["figures"]] == [("p50_us", "better")]


def test_results_without_a_common_figure_cannot_be_compared(tmp_path: Path) -> None:
    assert compare.main(_files(tmp_path, _result({"msg_per_s": [1.0]}), _result({}))) == 2


@pytest.mark.parametrize("name", ["latest", "cluster", "cluster-bulk", "postgres"])
def test_published_results_of_any_age_can_be_compared(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RESULTS / f"{name}.json")
    assert compare.main([path, path]) == 0
    assert "better" not in capsys.readouterr().out

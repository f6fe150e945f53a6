"""A published figure that nobody can trust is worse than none."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import __main__ as suite
from benchmarks import publish, report, version
from benchmarks.machine import Machine
from benchmarks.measure import Line, Settings, WorkResult
from benchmarks.version import Version
from benchmarks.works.memory import MEMORY
from benchmarks.works.publish import DURABLE

MACHINE = Machine(2, "Some CPU", 8.0, "6.1", "ext4", 2.0, 2.0, "3.11.0", 0.1)
CLEAN = Version(commit="0123456789abcdef", described="v1-3-g0123456", is_clean=True, source="abc")


def _line(rounds: list[float], shares: list[float], problem: str = "") -> Line:
    return Line("Holdfast text", "holdfast", "", {"msg_per_s": rounds} if rounds else {}, shares, problem=problem)


def _run(line: Line, **changed: object) -> report.Run:
    run = report.Run(MACHINE, Settings(), {}, [WorkResult(DURABLE, (line,))], [], CLEAN)
    return replace(run, **changed)  # type: ignore[arg-type]


SOUND = _run(_line([1.0, 2.0, 3.0], [0.0, 0.1, 0.0]))


def test_enough_quiet_rounds_of_committed_code_are_published(tmp_path: Path) -> None:
    assert publish.objections(SOUND) == []
    publish.check(SOUND, tmp_path / "new.json")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (_run(_line([1.0, 2.0], [0.0, 0.0])), "publish-durable, Holdfast text: 2 of at least 3 rounds"),
        (
            _run(_line([1.0, 2.0, 3.0], [0.0, 0.5, 0.0])),
            "publish-durable, Holdfast text: others had up to 50% of the machine in 1 of 3 rounds",
        ),
        (_run(_line([], [], "failed: OSError")), "publish-durable, Holdfast text: failed: OSError"),
        (replace(SOUND, settings=Settings(quick=True)), "it is a quick run"),
        (replace(SOUND, settings=Settings(rounds=2)), "2 of at least 3 rounds"),
        (replace(SOUND, code=None), "the commit of the measured code is not known"),
        (
            replace(SOUND, code=replace(CLEAN, is_clean=False)),
            "the measured code is not that of its commit",
        ),
        (
            replace(SOUND, objection="the code changed"),
            "the code changed",
        ),
    ],
    ids=["few rounds", "disturbed", "failed", "quick", "few asked for", "no commit", "changed", "changed meanwhile"],
)
def test_what_is_not_sound_is_refused_and_says_why_in_its_file(run: report.Run, reason: str, tmp_path: Path) -> None:
    assert publish.objections(run) == [reason]
    with pytest.raises(publish.Refused, match=reason.replace("(", ".")):
        publish.check(run, tmp_path / "new.json")
    publish.check(run, tmp_path / "new.json", force=True)
    report.write_json(run, tmp_path / "new.json", publish.objections(run))
    assert json.loads((tmp_path / "new.json").read_text())["objections"] == [reason]


def test_a_peer_that_is_not_installed_is_no_reason_to_refuse() -> None:
    assert publish.objections(_run(_line([], [], "not installed: apt install redis-server"))) == []


def test_a_work_that_is_run_once_needs_one_round() -> None:
    line = _line([1.0], [0.0])
    assert publish.objections(replace(SOUND, results=[WorkResult(MEMORY, (line,))])) == []


def test_a_part_does_not_replace_a_whole_result(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    path.write_text(json.dumps({"works": [{"name": "publish-durable"}, {"name": "memory"}]}))
    with pytest.raises(publish.Refused, match=r"works that were not run: memory"):
        publish.check(SOUND, path, force=True)


def test_a_run_that_cannot_be_published_is_refused_before_it_takes_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--publish", "latest", "--rounds", "1", "--only", "memory"]) == suite.REFUSED
    assert "1 of at least 3 rounds" in capsys.readouterr().err


def _git(directory: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(directory), *who, *arguments], check=True, capture_output=True)


def test_code_that_was_changed_since_its_commit_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "holdfast"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ANSWER = 1\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "-A")
    _git(tmp_path, "commit", "-q", "-m", "one")
    committed = version.of(package)
    assert committed.is_clean and committed.commit is not None and committed.described is not None
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "latest.json").write_text("{}")
    assert version.of(package) == committed
    (package / "__init__.py").write_text("ANSWER = 2\n")
    changed = version.of(package)
    assert (changed.is_clean, changed.commit) == (False, committed.commit)
    assert changed.source != committed.source


def test_code_without_a_repository_has_a_digest_only(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    found = version.of(tmp_path)
    assert (found.commit, found.is_clean) == (None, False)
    assert len(found.source) == 12

"""What a result must have before it is published in `benchmarks/results`: rounds enough, undisturbed, of known code."""

import json
from pathlib import Path

from benchmarks.measure import ROUNDS_MIN, Line, Settings, WorkResult
from benchmarks.report import Run
from benchmarks.version import Version

RESULTS = Path(__file__).parent / "results"
NAMED_MAX = 5


class Refused(RuntimeError):
    """The result was not published."""


def known_before(settings: Settings, code: Version | None) -> list[str]:
    """What is wrong with a run before it begins."""
    found = ["it is a quick run"] if settings.quick else ["it is a short run"] if settings.short else []
    if settings.rounds < ROUNDS_MIN:
        found.append(f"{settings.rounds} of at least {ROUNDS_MIN} rounds")
    if code is None or code.commit is None:
        found.append("the commit of the measured code is not known")
    elif not code.is_clean:
        found.append("the measured code is not that of its commit")
    return found


def objections(run: Run) -> list[str]:
    """Why these figures are not to be published. They stand in every file that is written."""
    found = known_before(run.settings, run.code)
    if run.objection and not run.settings.quick:
        found.append(run.objection)
    for result in run.results:
        reasons = ((line.contender, _reason(result, line)) for line in result.lines)
        found += [f"{result.work.name}, {contender}: {reason}" for contender, reason in reasons if reason]
    return found


def _reason(result: WorkResult, line: Line) -> str:
    """A peer that is not there is named in the result, and no reason to refuse it."""
    if line.problem:
        return line.problem if line.failed else ""
    return line.too_few_rounds(result.work.rounds_min) or line.disturbance()


def check(run: Run, path: Path, *, force: bool = False) -> None:
    """Raise if the run must not become the published result at `path`."""
    found = [] if force else objections(run)
    if path.exists():
        published = {work["name"] for work in json.loads(path.read_text("utf-8"))["works"]}
        missing = sorted(published - {result.work.name for result in run.results})
        found += [f"{path.name} has works that were not run: {', '.join(missing)}"] if missing else []
    if found:
        more = f"; and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise Refused("; ".join(found[:NAMED_MAX]) + more)

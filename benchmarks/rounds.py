"""Runs a work: contenders one after the other, round after round, so that a slow minute hits them all."""

import re
import subprocess
from collections.abc import Callable, Collection, Mapping

from benchmarks import quiet
from benchmarks.load.wire import LoadFailed
from benchmarks.measure import FAILED, Contender, Line, Measured, Settings, Work, WorkResult
from benchmarks.process import ServerFailed

Say = Callable[[str], None]

# What can go wrong with a server or a generator; anything else is a mistake in this suite.
_WORLD = (LoadFailed, ServerFailed, OSError, subprocess.SubprocessError)

PROBLEM_CHARACTERS_MAX = 160
_PATH = re.compile(r"(/[\w.+-]+){2,}")


def run_work(
    work: Work, settings: Settings, missing: Mapping[str, str | None], chosen: Collection[str], say: Say
) -> WorkResult:
    """`missing` says for each peer how to get it, or None; peers that are not `chosen` are left out."""
    lines = [Line(one.name, one.peer, one.setting, against=one.against or work.reference) for one in work.contenders]
    for line in lines:
        line.problem = _obstacle(line.peer, missing, chosen)
    rounds = settings.once_rounds if work.once else settings.rounds
    for number in range(1, rounds + 1):
        for contender, line in zip(work.contenders, lines, strict=True):
            if line.problem:
                continue
            where = f"{work.name} {number}/{rounds}  {contender.name}, {contender.setting}"
            _run_once(contender, settings, line)
            say(f"{where}: {line.problem or _latest(line, work.figure)}")
    return WorkResult(work, tuple(lines))


def _obstacle(peer: str, missing: Mapping[str, str | None], chosen: Collection[str]) -> str:
    if peer not in chosen:
        return "not selected for this run"
    hint = missing.get(peer)
    return f"not installed: {hint}" if hint else ""


def plain(problem: str) -> str:
    """The last line of what went wrong, short and without the machine's paths."""
    lines = problem.strip().splitlines() or ["no reason was given"]
    return _PATH.sub("…", lines[-1])[:PROBLEM_CHARACTERS_MAX]


def _run_once(contender: Contender, settings: Settings, line: Line) -> None:
    """One round: done again while others are busy on the machine, the least disturbed attempt counts."""
    attempts: list[tuple[float, Measured]] = []
    for _ in range(1 if settings.quick else quiet.ATTEMPTS_MAX):
        if not settings.quick:
            quiet.wait()
        before = quiet.now()
        try:
            measured = contender.run(settings)
        except _WORLD as error:
            line.problem = FAILED + plain(str(error))
            return
        attempts.append((quiet.foreign_share(before, quiet.now()), measured))
        if attempts[-1][0] <= quiet.FOREIGN_SHARE_MAX:
            break
    foreign_share, measured = min(attempts, key=lambda attempt: attempt[0])
    line.foreign_shares.append(foreign_share)
    for figure, value in measured.figures.items():
        line.rounds.setdefault(figure, []).append(value)
    line.note, line.weaker = measured.note, measured.weaker


def _latest(line: Line, figure: str) -> str:
    note = f" ({line.note})" if line.note else ""
    return f"{line.rounds[figure][-1]:,.1f} {figure}{note}, others {line.foreign_shares[-1]:.0%}"

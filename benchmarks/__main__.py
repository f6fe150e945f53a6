"""Measures Holdfast and its peers side by side."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.measure import Settings
    from benchmarks.report import Run

LAST = Path(__file__).parent / "results" / "last.json"

SECONDS, SECONDS_SHORT, SECONDS_QUICK = 2.0, 1.0, 0.1
ROUNDS, ROUNDS_SHORT, ROUNDS_QUICK = 5, 3, 1

# In a file or a pipe nothing says how wide a line may be.
REPORT_COLUMNS = 150

MISSED, WRONG_ARGUMENTS, REFUSED = 1, 2, 3


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement: nothing is judged")
    parser.add_argument("--short", action="store_true", help="ten minutes: something of every part, judged")
    parser.add_argument(
        "--only",
        action="append",
        metavar="WORK",
        help="run this work, or a family of works as in `cluster`; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="name the works and end")
    parser.add_argument(
        "--peers", default="redis,nats,rabbitmq", help="comma-separated; an empty list measures Holdfast alone"
    )
    parser.add_argument("--seconds", type=float, help=f"of every run (default {SECONDS:g})")
    parser.add_argument("--rounds", type=int, help=f"of every contender (default {ROUNDS}, or 1 where a title says so)")
    parser.add_argument("--json", type=Path, default=LAST, metavar="FILE", help="default: benchmarks/results/last.json")
    parser.add_argument("--png", type=Path, metavar="FILE", help="default: beside the JSON file")
    parser.add_argument("--publish", metavar="NAME", help="write benchmarks/results/NAME.json, if the result is sound")
    parser.add_argument("--force", action="store_true", help="publish it all the same; the file says what is wrong")
    parser.add_argument("--dir", type=Path, help="where servers keep their data (default: temporary files)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed or Holdfast fails")
    return parser.parse_args(argv)


def _settings(arguments: argparse.Namespace) -> "Settings":
    from benchmarks.measure import Settings

    kinds = {"quick": (SECONDS_QUICK, ROUNDS_QUICK), "short": (SECONDS_SHORT, ROUNDS_SHORT), "": (SECONDS, ROUNDS)}
    seconds, rounds = kinds["quick" if arguments.quick else "short" if arguments.short else ""]
    return Settings(
        seconds=arguments.seconds or seconds,
        rounds=arguments.rounds or rounds,
        once_rounds=arguments.rounds or 1,
        quick=arguments.quick,
        short=arguments.short,
        directory=arguments.dir,
    )


def _peers() -> dict[str, ModuleType]:
    from benchmarks.peers import holdfast, nats, rabbitmq, redis

    return {module.NAME: module for module in (holdfast, redis, nats, rabbitmq)}


def _describe_peers(peers: dict[str, ModuleType], chosen: set[str]) -> dict[str, dict[str, str | None]]:
    described = {}
    for name, module in peers.items():
        hint = module.missing()
        problem = f"not installed: {hint}" if hint else ""
        if name not in chosen:
            problem = "not selected for this run"
        described[name] = {"version": None if hint else module.version(), "problem": problem}
    return described


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)

    from rich.console import Console

    from benchmarks import machine, publish, report, targets, version
    from benchmarks.rounds import run_work
    from benchmarks.works import ALL, named

    works = targets.short_works(ALL) if arguments.short else list(ALL)
    if arguments.list:
        for work in works:
            print(f"{work.name:22} {work.title}")
        return 0
    only: list[str] = arguments.only or []
    wanted = {work.name for name in only for work in named(name)}
    works = [work for work in works if work.name in wanted or not only]
    unknown = sorted(name for name in only if not named(name))
    peers = _peers()
    chosen = {"holdfast", *filter(None, arguments.peers.split(","))}
    unknown += sorted(chosen - set(peers))
    if unknown or not works:
        print(f"unknown: {', '.join(unknown or only)}; --list names the works", file=sys.stderr)
        return WRONG_ARGUMENTS
    settings = _settings(arguments)
    code = version.current()
    if arguments.publish and not arguments.force and (known := publish.known_before(settings, code)):
        print(f"this run could not be published: {'; '.join(known)}", file=sys.stderr)
        return REFUSED

    console, progress = Console(), Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(width=REPORT_COLUMNS)
    described = _describe_peers(peers, chosen)
    this_machine = machine.describe(settings.directory)
    missing = {name: module.missing() for name, module in peers.items()}

    def say(said: str) -> None:
        progress.print(said, style="dim", markup=False, soft_wrap=True)

    results = [run_work(work, settings, missing, chosen, say) for work in works]
    objection = "a quick run is not judged" if settings.quick else ""
    if code.source != version.current().source:
        objection = described["holdfast"]["problem"] = "the broker's code changed during the run"
    described["holdfast"]["source"] = code.source
    this_machine = machine.again(this_machine, settings.directory)
    verdicts = [one for one in targets.judge(results, objection) if one.target.is_short or not settings.short]
    run = report.Run(this_machine, settings, described, results, verdicts, code, objection)
    report.print_tables(run, console)
    _write(run, arguments.json, arguments.png, console)
    if arguments.publish:
        path = publish.RESULTS / f"{arguments.publish}.json"
        try:
            publish.check(run, path, force=arguments.force)
        except publish.Refused as refused:
            print(f"not published: {refused}. The result is in {arguments.json}", file=sys.stderr)
            return REFUSED
        _write(run, path, None, console)
    missed = any(verdict.passed is False for verdict in run.verdicts)
    # A broker that ends or loses messages has missed every target of that line.
    failed = any(line.failed and line.peer == "holdfast" for result in run.results for line in result.lines)
    return MISSED if (missed or failed) and arguments.check else 0


def _write(run: "Run", path: Path, picture: Path | None, console: "Console") -> None:
    from benchmarks import publish, report
    from benchmarks.plot import draw

    report.write_json(run, path, publish.objections(run))
    try:
        draw(run, picture or path.with_suffix(".png"))
    except ModuleNotFoundError as error:
        console.print(f"[yellow]no plot: {error.name} is not installed (pip install -e '.[bench]')[/yellow]")


def _end(signal_number: int, _frame: FrameType | None) -> None:
    # As an exception it unwinds every context, and those end the servers.
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

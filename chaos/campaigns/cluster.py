"""Each fault by itself, so many times, on clusters of three, with a verdict on each cluster."""

from __future__ import annotations

import argparse

from testkit.nemesis import FAULTS, possible

from chaos import report
from chaos.report import Report
from chaos.run import Plan, plans, run

_NODES = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is brought about")
    parser.add_argument("--faults-per-run", type=int, default=4, help="faults that one cluster lives through")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="one run with these, in this order")
    parser.add_argument("--without", action="append", choices=sorted(FAULTS), default=[], help="leave this one out")


def main(options: argparse.Namespace) -> int:
    made = Report("cluster", options)
    if options.fault:
        chosen = [Plan(options.seed, tuple(options.fault))]
    else:
        kinds, made.skipped = possible([name for name in FAULTS if name not in options.without], _NODES)
        chosen = plans(options.seed, list(kinds), options.rounds, options.faults_per_run)
    with made.progress("faults", sum(len(plan.faults) for plan in chosen)) as move:
        for plan in chosen:
            move(plan.faults[0], 0)
            with made.attempt(plan.replay, plan.faults):
                made.add(run(plan))
            move(plan.faults[-1], len(plan.faults))
    return made.finish()

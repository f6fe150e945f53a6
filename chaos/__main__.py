"""Break real brokers on purpose, and hold everything that anybody was told against what they serve."""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import sys
from types import FrameType
from typing import Final, NamedTuple


class Campaign(NamedTuple):
    summary: str
    example: str


CAMPAIGNS: Final = {
    "cluster": Campaign("each fault by itself, on clusters of three", "--rounds 20"),
    "long": Campaign("one cluster through faults that overlap, and a picture of it", "--minutes 30 --seed 7"),
    "members": Campaign("nodes join, leave and replace each other, under kills and splits", "--changes 500"),
    "pair": Campaign("failovers of a pair, and long splits", "--failovers 200 --splits 2"),
    "outage": Campaign("outages of a PostgreSQL under one to three brokers", "--outages 100 --brokers 2"),
    "recover": Campaign("kills of recoveries of spilled messages", "--kills 50"),
    "archive": Campaign("kills of a driver that archives and compacts", "--kills 20"),
    "spark": Campaign("kills of executors, drivers and brokers under streaming queries", "--rounds 8"),
    "transform": Campaign("kills of the driver of transforms", "--kills 20"),
    "soak": Campaign("a long stream takes no more and more memory", "--seconds 600"),
}


_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _end(number: int, _frame: FrameType | None) -> None:
    """End the campaign, which takes its mounts and namespaces away; a second signal must not break that off."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    lines = ["campaigns, with an example of each; `python -m chaos CAMPAIGN --help` has the options:"]
    for name, each in CAMPAIGNS.items():
        lines += [f"  {name:10} {each.summary}", f"{'':13}python -m chaos {name} {each.example}"]
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=__doc__,
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("campaign", choices=CAMPAIGNS, metavar="CAMPAIGN", help="see below")
    name = parser.parse_args(words[:1]).campaign
    module = importlib.import_module(f"chaos.campaigns.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m chaos {name}",
        description=module.__doc__,
        epilog=f"example: python -m chaos {name} {CAMPAIGNS[name].example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    options = parser.parse_args(words[1:])
    for number in _ENDING:
        signal.signal(number, _end)
    # That clients lose brokers is what is wanted here.
    logging.getLogger("holdfast.client").setLevel(logging.ERROR)
    code: int = module.main(options)
    return code


if __name__ == "__main__":
    sys.exit(main())

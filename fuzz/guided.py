"""The same targets, guided by coverage: `python -m fuzz.guided NAME --seconds 60 --seed N`. Needs atheris.

libFuzzer keeps every input that reached new code and mutates those; a find is written to a file and ends the
process with an exit code that is not 0.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["holdfast"]):
    from fuzz.targets import TARGETS
    from holdfast.model.errors import HoldfastError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.guided", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target = TARGETS[options.target]

    def one_input(data: bytes) -> None:
        with contextlib.suppress(HoldfastError):
            target.run(data)

    # Not removed at the end: libFuzzer ends the process itself, and finds are kept there.
    corpus = Path(tempfile.mkdtemp(prefix=f"holdfast-fuzz-{options.target}-"))
    for number, example in enumerate(target.examples):
        (corpus / f"example-{number}").write_bytes(example)
    print(f"{options.target}: seed {options.seed}, corpus and finds in {corpus}", flush=True)
    limits = [f"-max_total_time={max(1, options.seconds)}", f"-seed={options.seed or 1}", "-max_len=20000"]
    atheris.Setup([sys.argv[0], *limits, "-verbosity=0", f"-artifact_prefix={corpus}/find-", str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

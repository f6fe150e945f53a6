"""Which Python plans and reads, and how it starts fast.

Spark puts a zip of its own Python files in front of everything else, also where pip has installed the same files: each
of the four processes that a first query takes would compile them anew, for the better part of a second. On this machine
workers are started through a script that leaves the zip out.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from holdfast.spark.java import cache_directory

_WITHOUT_ZIPS: Final = """#!/bin/sh
paths=
IFS=:
for each in $PYTHONPATH; do
    case $each in
        */pyspark.zip | */py4j-*-src.zip) ;;
        *) paths=${{paths:+$paths:}}$each ;;
    esac
done
unset IFS
PYTHONPATH=$paths exec '{python}' "$@"
"""


def choose_python(python: str | None, *, is_local: bool) -> None:
    """Put into the environment, where Spark looks, which interpreter plans here and reads there."""
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    elif is_local:
        os.environ.setdefault("PYSPARK_PYTHON", str(local_python()))
    else:
        os.environ.setdefault("PYSPARK_PYTHON", "python3")
        # Here that name is to mean the interpreter that has Holdfast: this one.
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def local_python() -> Path:
    """This interpreter, by a script that leaves Spark's zip out where pip has installed Spark."""
    here = Path(sys.executable)
    if sys.platform == "win32" or "SPARK_HOME" in os.environ or find_spec("pyspark") is None:
        return here
    text = _WITHOUT_ZIPS.format(python=here)
    script = cache_directory() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not script.is_file():
        script.parent.mkdir(parents=True, exist_ok=True)
        made = script.with_suffix(f".{os.getpid()}")
        made.write_text(text, "utf-8")
        made.chmod(0o755)
        made.replace(script)
    return script

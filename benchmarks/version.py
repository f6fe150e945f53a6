"""Which code a run measured: its commit, whether it was changed since, and a digest of the broker's modules."""

import hashlib
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# What decides the figures; a published result that is written does not make the code another one.
_CODE = ("src", "benchmarks", "pyproject.toml", "constraints.txt", ":!benchmarks/results")


@dataclass(frozen=True, slots=True)
class Version:
    """`commit` and `described` are None where the code is no clone of its repository."""

    commit: str | None
    described: str | None
    """By `git describe`: the last tag, the commits since, and the commit."""
    is_clean: bool
    source: str
    """Two runs with the same digest measured the same broker."""

    def __str__(self) -> str:
        return f"{self.described or 'no commit'}{'' if self.is_clean else ', with changes'}, code {self.source}"


def package() -> Path:
    """Where the measured code is."""
    found = find_spec("holdfast")
    assert found is not None and found.origin is not None, "holdfast is not installed"
    return Path(found.origin).parent


def current() -> Version:
    return of(package())


def of(directory: Path) -> Version:
    """The version of the package in that directory."""
    root = _git(directory, "rev-parse", "--show-toplevel")
    if root is None:
        return Version(None, None, False, _digest(directory))
    return Version(
        commit=_git(directory, "rev-parse", "HEAD"),
        described=_git(directory, "describe", "--tags", "--always"),
        is_clean=_git(Path(root), "status", "--porcelain", "--", *_CODE) == "",
        source=_digest(directory),
    )


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        digest.update(str(path.relative_to(directory)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

"""Finding Java, also where it is old, broken, or lacks what Spark asks for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.spark import java
from holdfast.spark.shipping import cluster_config, connector_zip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def java_home(directory: Path, version: str, modules: str = "java.base") -> Path:
    """Something that answers as Java does, and else says what it was given."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}" 2026-01-01\' >&2; exit; }}\n'
        'for word do echo "$word"; done\n'
    )
    program.chmod(0o755)
    (directory / "release").write_text(f'MODULES="{modules}"\n')
    return directory


def test_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java_home(tmp_path / "old", "1.8.0_392")
    new = java_home(tmp_path / "new", "21.0.2", "java.base jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java.find_java() == java.Java(new, "21.0.2")


def test_java_without_the_module_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "small", "21.0.2")))
    found = java.find_java()
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "c"]
    printed = subprocess.run([found.home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["-Xmx1g", "a b", "c"]


def test_no_java_is_told_with_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(java, "_homes", lambda: iter([tmp_path / "nothing", java_home(tmp_path / "old", "11.0.1")]))
    with pytest.raises(HoldfastError, match=r"\[java_not_found\].*\(does not run\).*\(Java 11.0.1\)") as raised:
        java.find_java()
    assert raised.value.code == "java_not_found"


def test_java_of_pip_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert int(java.find_java().version.split(".")[0]) >= java.VERSION_MIN


def test_executors_get_what_they_import_and_the_same_zip_each_time() -> None:
    shipped = connector_zip()
    assert connector_zip() == shipped
    names = zipfile.ZipFile(shipped).namelist()
    assert {"holdfast/__init__.py", "holdfast/model/errors.py", "holdfast/spark/decoding.py"} <= set(names)
    assert [name for name in names if "/client/" in name] == []
    config = cluster_config({"spark.files": "mine.txt", "spark.executorEnv.PYTHONPATH": "mine"})
    assert config["spark.files"] == f"mine.txt,{shipped}"
    assert config["spark.executorEnv.PYTHONPATH"] == f"./{shipped.name}:mine"


def test_missing_packages_are_named_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('not here', name='pyspark')")
    ran = subprocess.run(
        [sys.executable, "-c", "import holdfast.spark; holdfast.spark.session()"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode != 0
    assert "needs the package pyspark" in ran.stderr and "pip install -e '.[spark]'" in ran.stderr

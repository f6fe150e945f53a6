"""A function is found by its name, looked at before Spark starts, and travels to executors that have nothing of it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark import cloudpickle

from holdfast.pipelines import transform_functions
from holdfast.pipelines.errors import BadFunction
from holdfast.pipelines.transform_functions import find, zipped

FILE = """
import re

FOUND = re.compile("tea")


class Order:
    def __init__(self, text):
        self.is_tea = bool(FOUND.search(text))


def teas(batch):
    return [Order(text).is_tea for text in batch]


def fold(state, batch):
    return state, batch


def slowly(batch):
    yield batch


LOCK = __import__("threading").Lock()


def locked(batch):
    with LOCK:
        return batch
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "my shop.py"
    made.write_text(FILE)
    return made


def test_function_of_a_file_travels_with_what_it_uses(file: Path, tmp_path: Path) -> None:
    found = find(f"{file}:teas")
    assert found.function(["tea", "milk"]) == [True, False] and found.package is None
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(found.function))  # type: ignore[no-untyped-call]
    script = f"import pickle; print(pickle.load(open({str(sent)!r}, 'rb'))(['milk', 'tea']))"
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, cwd="/")
    assert elsewhere.stdout == "[False, True]\n"


def test_function_of_a_package_is_sent_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "holdfast_test_shop"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "__init__.py").write_text(
        "from holdfast_test_shop.prices import PRICE\n\n\ndef priced(batch):\n    return PRICE\n"
    )
    (package / "prices.py").write_text("PRICE = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = find("holdfast_test_shop.deep:priced")
    assert found.package == package
    archive = zipped(package)
    assert zipfile.ZipFile(archive).namelist() == [
        "holdfast_test_shop/__init__.py",
        "holdfast_test_shop/deep/__init__.py",
        "holdfast_test_shop/prices.py",
    ]
    script = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import holdfast_test_shop.deep as d; print(d.priced(1))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, cwd="/").stdout == b"5\n"
    monkeypatch.setattr(transform_functions, "PACKAGE_BYTES_MAX", 10)
    with pytest.raises(BadFunction, match="at most 10 are sent"):
        zipped(package)


def test_what_is_installed_or_ours_is_not_sent() -> None:
    assert find("holdfast.pipelines.computing:compute").package is None
    assert find("json:loads").package is None
    assert find("pyarrow.compute:sort_indices").package is None


@pytest.mark.parametrize(
    ("name", "is_stateful", "words"),
    [
        ("teas", False, "write package.module:name or path/to/file.py:name"),
        ("a b:teas", False, "is no module"),
        ("nobody_made_this:teas", False, "cannot be imported: ModuleNotFoundError"),
        ("{file}:milk", False, "has no function milk; it has Order, fold, locked, slowly, teas"),
        ("missing.py:teas", False, "there is no file missing.py"),
        ("{file}:fold", False, r"is called with \(batch\) and takes \(state, batch\)"),
        ("{file}:teas", True, r"is called with \(state, batch\) and takes \(batch\)"),
        ("{file}:slowly", False, "it has to return rows"),
        ("{file}:locked", False, "cannot be sent to executors: TypeError"),
    ],
)
def test_function_that_cannot_be_is_told_before_spark_starts(
    name: str, is_stateful: bool, words: str, file: Path
) -> None:
    with pytest.raises(BadFunction, match=words) as refused:
        find(name.format(file=file), is_stateful=is_stateful)
    assert refused.value.code == "bad_function"


def test_file_that_raises_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(BadFunction, match="cannot be imported: ZeroDivisionError"):
        find(f"{tmp_path / 'broken.py'}:f")

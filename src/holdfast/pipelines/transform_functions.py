"""A user's function by its name: `package.module:name`, or `path/to/file.py:name`, and how executors get it.

A module is found as Python finds it, in the working directory too. What is installed must be installed where executors
run as well; what is not, a package of the user's own, is sent to them as a zip with everything in its directory. A file
travels inside of the function, as what is typed into a notebook does: it may import what executors have, and no file
beside it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.pipelines.dead_letters import text_of
from holdfast.pipelines.errors import BadFunction, spark_not_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A package of functions is small; a directory with data, or an environment, is none.
PACKAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"(?P<place>.+):(?P<name>[A-Za-z_][A-Za-z0-9_.]*)")
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Found(NamedTuple):
    """A function, and the package or module that executors have to be sent for it, if any."""

    function: Callable[..., Any]
    package: Path | None = None


def find(text: str, *, is_stateful: bool = False) -> Found:
    """Import a function and look whether it takes what it will be called with; `bad_function` says what is wrong."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise BadFunction(f"{text!r} is no function; write package.module:name or path/to/file.py:name")
    place, name = match["place"], match["name"]
    is_file = place.endswith(".py")
    module = _from_file(Path(place)) if is_file else _from_path(place)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        names = ", ".join(sorted(each for each in vars(module) if callable(getattr(module, each)) and each[0] != "_"))
        raise BadFunction(f"{place} has no function {name}; it has {names or 'none'}")
    _check_arguments(text, function, ("state", "batch") if is_stateful else ("batch",))
    found = Found(function, None if is_file else _package(module))
    _check_travels(text, found)
    return found


def _from_path(place: str) -> ModuleType:
    if not _MODULE.fullmatch(place):
        raise BadFunction(f"{place!r} is no module; write package.module:name or path/to/file.py:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except Exception as error:
        raise BadFunction(f"{place} cannot be imported: {type(error).__name__}: {text_of(error)}") from error


def _from_file(file: Path) -> ModuleType:
    """A module of its own name, so that it hides none that is there."""
    if not file.is_file():
        raise BadFunction(f"there is no file {file}")
    name = f"holdfast_function_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadFunction(f"{file} cannot be imported: {type(error).__name__}: {text_of(error)}") from error
    _pickler().register_pickle_by_value(module)
    return module


def _check_arguments(text: str, function: Any, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of something compiled, which does not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise BadFunction(f"{text} is called with ({', '.join(arguments)}) and takes {signature}") from error
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise BadFunction(f"{text} yields or awaits; it has to return rows")


def _check_travels(text: str, found: Found) -> None:
    try:
        _pickler().dumps(found.function)
    except Exception as error:
        raise BadFunction(f"{text} cannot be sent to executors: {type(error).__name__}: {text_of(error)}") from error


def _pickler() -> Any:
    """What Spark sends functions with."""
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError as missing:
        raise spark_not_installed(missing) from missing
    return cloudpickle


def _package(module: ModuleType) -> Path | None:
    """The directory or file to send; none of what is installed, is Python's own, or comes with the connector."""
    top = sys.modules[module.__name__.partition(".")[0]]
    if top.__name__ == "holdfast" or getattr(top, "__file__", None) is None:
        return None
    file = Path(str(top.__file__)).resolve()
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    if any(file.is_relative_to(place) for place in installed):
        return None
    return file.parent if file.name == "__init__.py" else file


def ship(spark: SparkSession, found: Found) -> None:
    """Have executors find the function's package."""
    if found.package is None:
        return
    spark.sparkContext.addPyFile(str(zipped(found.package)))


def zipped(package: Path) -> Path:
    """`<cache>/holdfast-function-<digest>.zip` of a package's files, made unless it is there."""
    from holdfast.spark.zips import zip_of

    is_file = package.is_file()
    files = [package] if is_file else sorted(each for each in package.rglob("*") if _is_part(each, package))
    size = sum(each.stat().st_size for each in files)
    if size > PACKAGE_BYTES_MAX:
        raise BadFunction(f"{package} has {size} bytes, and at most {PACKAGE_BYTES_MAX} are sent to executors")
    texts = {str(each.relative_to(package.parent)): each.read_bytes() for each in files}
    return zip_of("holdfast-function", texts)


def _is_part(file: Path, package: Path) -> bool:
    inside = file.relative_to(package).parts
    return file.is_file() and "__pycache__" not in inside and not any(part.startswith(".") for part in inside)

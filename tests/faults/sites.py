"""Every place that raises an error can be made to raise it, whatever it looks at.

Modules are rewritten as they are imported. Where an `if` leads to an error, its test also asks `Faults`. Where a
handler turns one error into another, the `try` above it also asks, before its first statement and, for errors of the
operating system, which may come after the work is done, behind its last one.
"""

from __future__ import annotations

import ast
import builtins
import errno
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NamedTuple

_NAME: Final = "_fault_at_this_site"
_ERRORS: Final = ("errors.py", "member_errors.py")
# What the operating system says.
_ERRNOS: Final = (errno.ENOSPC, errno.EIO, errno.EMFILE)
_OS: Final = "(system)"
_LOST: Final = "is lost"


class Fault(NamedTuple):
    """A site that fails, at one of its turns; where the operating system is what fails, with this number."""

    site: str
    turn: int
    errno: int = 0


def faults_of(turns: Mapping[str, int]) -> list[Fault]:
    """The first turn of each site that was reached, the last one, and one between, with everything it may fail with.

    What is lost on its way may be lost at any turn.
    """
    return [
        Fault(site, turn, number)
        for site, count in sorted(turns.items())
        for turn in (range(1, count + 1) if site.endswith(_LOST) else sorted({1, (count + 1) // 2, count}))
        for number in (_ERRNOS if site.endswith(_OS) else (0,))
    ]


class Faults:
    """Counts the turns of all sites and says which one fails."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()
        self.has_failed = False
        self._armed: Fault | None = None

    def arm(self, fault: Fault | None) -> None:
        self.turns, self._armed, self.has_failed = Counter(), fault, False

    def disarm(self) -> Counter[str]:
        """Nothing fails from now on. Returns the turns until now."""
        self._armed = None
        return Counter(self.turns)

    def __call__(self, site: str) -> bool:
        self.turns[site] += 1
        armed = self._armed
        fails = armed is not None and armed.site == site and armed.turn == self.turns[site]
        self.has_failed |= fails
        return fails

    def os_error(self) -> OSError:
        assert self._armed is not None, "a site fails only where a test wants it to"
        return OSError(self._armed.errno, os.strerror(self._armed.errno))


FAULTS: Final = Faults()


class _Rewriter(ast.NodeTransformer):
    def __init__(self, module: str, errors: frozenset[str]) -> None:
        self._module = module
        self._errors = errors

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        if any(map(self._makes_an_error, node.body)):
            node.test = ast.BoolOp(ast.Or(), [node.test, self._question(node, "if")])
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try:
        self.generic_visit(node)
        if not any(self._makes_an_error(each) for handler in node.handlers for each in handler.body):
            return node
        types = [each.type for each in node.handlers if each.type is not None]
        caught = {name.id for each in types for name in ast.walk(each) if isinstance(name, ast.Name)}
        if "OSError" in caught:
            node.body.insert(0, self._raise(node, f"before {_OS}", f"{_NAME}.os_error()"))
            if not isinstance(node.body[-1], ast.Return) and not _opens(node.body[-1]):
                node.body.append(self._raise(node, f"after {_OS}", f"{_NAME}.os_error()"))
        elif "TimeoutError" in caught:
            node.body.insert(0, self._raise(node, "before", "TimeoutError()"))
        return node

    def _makes_an_error(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If | ast.For | ast.While | ast.Try | ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        calls = [each.func for each in ast.walk(statement) if isinstance(each, ast.Call)]
        names = {each.id for each in calls if isinstance(each, ast.Name)}
        return bool(names & self._errors) or "as_write_error" in names

    def _question(self, node: ast.stmt, what: str) -> ast.expr:
        return _expression(f"{_NAME}({f'{self._module}:{node.lineno} {what}'!r})")

    def _raise(self, node: ast.stmt, what: str, error: str) -> ast.stmt:
        return ast.If(self._question(node, what), [ast.Raise(_expression(error))], [])


def _opens(statement: ast.stmt) -> bool:
    """Whether it opens a file: where that fails there is none, so nothing is done."""
    return any(isinstance(each, ast.Attribute) and each.attr == "open" for each in ast.walk(statement))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class _Loader(SourceFileLoader):
    errors: frozenset[str] = frozenset()

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        tree = ast.fix_missing_locations(_Rewriter(fullname.removeprefix("holdfast."), self.errors).visit(tree))
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._prefixes):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.get_filename(fullname))
        return spec


def install(source: Path, prefixes: tuple[str, ...]) -> None:
    """Rewrite what is imported from now on; `source` is the package's directory."""
    loaded = [name for name in sys.modules if name.startswith(prefixes)]
    assert not loaded, f"these are imported already: {loaded}"
    texts = [(source / "model" / name).read_text() for name in _ERRORS]
    _Loader.errors = frozenset(name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE))
    setattr(builtins, _NAME, FAULTS)
    sys.meta_path.insert(0, _Finder(prefixes))

"""What the tree looks like: modules explain themselves, and no file names what it should not."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from holdfast.node import config, environment

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in tracked_files():
        if path.suffix not in {".png", ".ico"} and path.is_file():
            found.append((str(path.relative_to(ROOT)), path.read_text("utf-8")))
    return found


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


def test_every_package_of_the_tree_is_in_the_architecture() -> None:
    described = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    packages = [path.parent.name for path in (ROOT / "src/holdfast").glob("*/__init__.py")]
    assert [name for name in packages if f"  {name}/" not in described] == []


def test_no_registry_address_is_named() -> None:
    pattern = re.compile(r"https?://[^\s\"']+\.(whl|tar\.gz|tgz|deb)\b|^(--)?(extra-)?index-url", re.MULTILINE)
    assert [name for name, text in texts() if pattern.search(text)] == []


def test_nobody_is_told_to_install_what_an_index_has_under_our_name() -> None:
    """Holdfast is installed from its sources; on an index the name is somebody else's."""
    pattern = re.compile(r"holdfast" + r"\[\w|\bpip\d? install (-\S+ )*['\"]?holdfast\b")
    assert [name for name, text in texts() if pattern.search(text)] == []


def test_no_path_of_a_developers_machine_is_named() -> None:
    pattern = re.compile(r"(?<![.\w])/(ro" + r"ot|ho" + r"me|wo" + r"rk)/\w")
    assert [name for name, text in texts() if pattern.search(text)] == []


def test_every_variable_of_the_environment_is_known() -> None:
    """A broker refuses to start with one that is neither a setting nor in the list of the others."""
    pattern = re.compile(r"(?<![\w.])HOLDFAST_[A-Z_]*[A-Z](?=[\"'`=])")
    for name in {name for _, text in texts() for name in pattern.findall(text)}:
        environment.settings_in({name: ""}, config.SETTINGS)  # raises for one that it does not know


def test_nothing_dangerous_is_called() -> None:
    pattern = re.compile(r"\b(pickle\.loads?|marshal\.loads|shell=True|(?<![.\w])eval\(|(?<![.\w])exec\()")
    assert [str(path.relative_to(ROOT)) for path in SOURCES if pattern.search(path.read_text("utf-8"))] == []


def test_no_exception_is_swallowed_in_silence() -> None:
    def is_silent(handler: ast.ExceptHandler) -> bool:
        broad = handler.type is None or (isinstance(handler.type, ast.Name) and "Exception" in handler.type.id)
        return broad and all(isinstance(step, ast.Pass | ast.Continue) for step in handler.body)

    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if "except" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ExceptHandler) and is_silent(node)
    ]
    assert silent == []


def test_every_decision_is_complete() -> None:
    records = sorted((ROOT / "docs/decisions").glob("0*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text("utf-8")
        assert all(part in text for part in ("**Problem.**", "**Chosen.**", "**Not chosen.**")), path.name


def test_no_tracked_link_leaves_the_tree() -> None:
    """Such a link points nowhere on another machine, and tools that follow it pack whatever is there."""
    links = [path for path in tracked_files() if path.is_symlink()]
    assert [str(path.relative_to(ROOT)) for path in links if not leads_into_the_tree(path)] == []


def leads_into_the_tree(link: Path) -> bool:
    target = link.readlink()
    return not target.is_absolute() and (link.parent / target).resolve().is_relative_to(ROOT)


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked_files():
        if path.suffix != ".md" or not path.is_file():
            continue
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)} -> {target}")
    assert broken == []

"""Private modules of Dagster are imported in one place, which knows the release that it was read from."""

import ast
from importlib.metadata import version
from pathlib import Path

import pytest

from assets.services import dagster_internals
from assets.services.dagster_internals import READ_FROM, WHAT_BREAKS

CHECKOUT = Path(__file__).resolve().parents[3]
DOOR = Path(dagster_internals.__file__)
OURS = sorted(
    file for room in ("assets", "resources", "training", "evaluation") for file in (CHECKOUT / room).rglob("*.py")
)


def test_the_installed_release_is_the_one_that_was_read() -> None:
    assert version("dagster") == READ_FROM, "read what WHAT_BREAKS names in the new release, then set READ_FROM"


def test_only_one_module_imports_private_modules_of_dagster() -> None:
    found = {file.relative_to(CHECKOUT).as_posix(): _private(file.read_text()) for file in OURS if file != DOOR}
    assert len(found) > 500
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from dagster._core.events import A",
        "import dagster._core",
        "from dagster import _utils",
        "import dagster._x as y",
    ],
)
def test_each_form_of_a_private_import_is_seen(line: str) -> None:
    assert _private(f"def later():\n    {line}\n")


def test_what_breaks_is_told_of_each_name() -> None:
    tree = ast.parse(DOOR.read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster.")
        for alias in node.names
    }
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    told = [name for names in WHAT_BREAKS for name in names.split()]
    assert sorted(told) == sorted(imported | {name for name in defined if not name.startswith("_")})
    assert all(WHAT_BREAKS.values())


def _private(source: str) -> list[str]:
    """The private modules of Dagster, or of its companions, that a source imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [
        name for name in names if name.startswith("dagster") and any(part.startswith("_") for part in name.split("."))
    ]

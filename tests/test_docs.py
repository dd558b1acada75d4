"""The pages a person reads: short lines and paragraphs, and names that exist in the code."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
import typer

from assets.commands.cli import app
from assets.state.chain import CHAIN
from benchmarks import tutorial
from tests.generated_docs import BLOCK, BLOCKS, pages
from tests.test_project import PROJECT

DOCS = sorted((PROJECT / "docs").rglob("*.md"))
PAGES = [*DOCS, *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
MOST_CHARACTERS, MOST_WORDS = 120, 90


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each paragraph and each item of a list; no headings, tables or code."""
    lines: list[str] = []
    is_code = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        is_fence = bare.startswith("```")
        ends = is_code or is_fence or not bare or bare.startswith(("|", "#")) or re.match(r"([-*]|\d+\.)\s", bare)
        if ends and lines:
            yield number - len(lines), " ".join(lines)
            lines = []
        if bare and not (is_code or is_fence or bare.startswith(("|", "#"))):
            lines.append(bare)
        is_code ^= is_fence


def test_lines_and_paragraphs_are_short():
    long = []
    for page in PAGES:
        text, name = page.read_text("utf-8"), str(page.relative_to(PROJECT))
        long += [(name, n, len(line)) for n, line in enumerate(text.splitlines(), 1) if len(line) > MOST_CHARACTERS]
        long += [(name, n, len(one.split())) for n, one in paragraphs(text) if len(one.split()) > MOST_WORDS]
    assert long == []


def test_a_paragraph_ends_at_blank_lines_items_tables_headings_and_code():
    text = "One\ntwo.\n- an\n  item\n1. other\n| a | table |\nAfter.\n# Heading\nLast\n```\ncode\n\ncode\n```\nBehind."
    found = [one for _, one in paragraphs(text)]
    assert found == ["One two.", "- an item", "1. other", "After.", "Last", "Behind."]


def test_what_a_change_touches_is_told_in_ten_lines():
    sections = (PROJECT / "CONTRIBUTING.md").read_text("utf-8").split("\n## Add ")[1:]
    assert {one.splitlines()[0]: len(one.splitlines()) - 2 for one in sections if len(one.splitlines()) > 12} == {}
    assert len(sections) == 9


def test_a_page_begins_with_a_paragraph():
    begins = {str(page.relative_to(PROJECT)): page.read_text("utf-8") for page in DOCS}
    assert [name for name, text in begins.items() if not re.match(r"# .*\n\n[A-Z]", text)] == []


def test_files_modules_and_commands_that_a_page_names_exist():
    """Dated notes and the changelog may name what was."""
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text("utf-8"), re.M)
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    wrong = []
    for page in (one for one in PAGES if "log" not in one.parts and one.name != "CHANGELOG.md"):
        text, found = page.read_text("utf-8"), str(page.relative_to(PROJECT))
        files = re.findall(r"`((?:assets|resources|training|evaluation|tests|benchmarks|requirements)/[\w./-]*)`", text)
        modules = re.findall(r"`((?:assets|resources|training)(?:\.\w+)+)", text)
        modules += re.findall(r"python -m ((?:training|evaluation|benchmarks)(?:\.\w+)*)", text)
        wrong += [(found, name) for name in files if not (PROJECT / name).exists()]
        wrong += [(found, name) for name in modules if not is_module_or_name(name)]
        wrong += [(found, f"make {name}") for name in {*re.findall(r"`make ([a-z-]+)", text)}.difference(targets)]
        wrong += [(found, name) for name in {*re.findall(r"`pedigree ([a-z]+)", text)} - commands]
    assert wrong == []


def is_module_or_name(dotted: str) -> bool:
    """Whether a package, a module, or a name in a module is called so."""
    path = PROJECT / dotted.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    return module.exists() and re.search(rf"\b{path.name}\b", module.read_text("utf-8")) is not None


def test_each_field_and_variable_of_a_table_written_by_hand_is_one_of_the_code():
    """The code has it as a key, a field or a parameter. What it means is told by the page alone."""
    known = set[str]()
    for package in ("assets", "evaluation", "resources", "training"):
        for path in (PROJECT / package).rglob("*.py"):
            source = path.read_text("utf-8")
            known.update(name for text in re.findall(r'"([\w. -]+)"', source) for name in re.findall(r"\w+", text))
            known.update(re.findall(r"\b(\w+): ", source))
    told = {name for page in DOCS if "log" not in page.parts for name in fields_of(page.read_text("utf-8"))}
    assert len(told) > 60
    assert sorted(told - known) == []


def fields_of(page: str) -> Iterator[str]:
    """Yield the names in the first columns of a page's tables of fields, options and variables."""
    for table in re.findall(r"^\| (?:field|option|variable)\b.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M):
        for row in table.splitlines():
            for quoted in re.findall(r"`([^`]+)`", row.split("|")[1]):
                yield from (name for name in re.findall(r"\w+", quoted) if not re.fullmatch("[A-Z]+", name))


def test_the_lists_that_the_code_knows_are_fresh():
    """`make docs` writes them."""
    written = list(pages())
    assert [path.name for path, text, fresh in written if text != fresh] == []
    names = [name for path, text, _ in written for _, name, _, _ in BLOCK.findall(text)]
    assert sorted(names) == sorted(BLOCKS)


def test_a_list_that_is_stale_or_changed_by_hand_is_written_anew(tmp_path):
    text = "Before.\n\n<!-- generated: exit-codes -->\n\nold\n\n<!-- end -->\nBehind.\n"
    (tmp_path / "page.md").write_text(text)
    ((_, _, fresh),) = pages(tmp_path)
    assert fresh.startswith("Before.\n\n<!-- generated: exit-codes -->\n\n| code |") and "| 3 | a gate refused" in fresh
    assert fresh.endswith("|\n\n<!-- end -->\nBehind.\n") and "old" not in fresh


def test_the_page_on_architecture_has_a_row_for_every_asset():
    text = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    kept = ", ".join(f"{section}.keep.is_asked" for section in ("pretrain", "long_context", "sft", "align"))
    scopes = {one.name: ", ".join(one.sections) or one.scope for one in CHAIN.values()}
    scopes = {name: scope.replace(kept, "any keep.is_asked") for name, scope in scopes.items()}
    rows = [f"| `{one.name}` | {scopes[one.name]} | `{one.stage.module}` |" for one in CHAIN.values()]
    assert [row for row in rows if row not in text] == []


TUTORIAL = [(page, one) for page in tutorial.PAGES for one in tutorial.commands(page.read_text("utf-8"))]


@pytest.mark.parametrize(("page", "command"), TUTORIAL, ids=lambda one: getattr(one, "name", None))
def test_each_command_of_the_tutorial_is_one_that_the_command_line_accepts(page, command):
    """`make tutorial` runs them."""
    words = shlex.split(command.line, comments=True)
    if words[0] != "pedigree":
        assert subprocess.run(["bash", "-n", "-c", command.line], check=False).returncode == 0
        return
    typer.main.get_command(app).make_context("pedigree", words[1:])
    name, *rest = words[1:]
    context = typer.main.get_command(app).commands[name].make_context(name, rest)
    recipe = tutorial.in_small(command._replace(line=str(context.params.get("recipe", "")))).line
    assert not recipe.startswith("kitchen") or (PROJECT / "tests" / "recipes" / f"{recipe}.yaml").exists()


def test_the_tutorial_in_small_names_the_small_recipes_and_nothing_else_in_their_place():
    line = "pedigree report kitchen --output kitchen.html; printf 'extends: kitchen\\n' > kitchen-model/kitchen-1"
    small = tutorial.in_small(tutorial.Command(line, 0)).line
    assert small == line.replace("report kitchen ", "report kitchen-small ").replace(": kitchen", ": kitchen-small")
    leak = tutorial.Command("pedigree run examples/recipes/kitchen-leak-early.yaml", 3)
    assert tutorial.in_small(leak).line == "pedigree run kitchen-small-leak-early"


def test_the_tutorial_ends_at_the_first_command_with_another_exit_code():
    good, bad = tutorial.Command("false", 1), tutorial.Command("exit_with() { return 3; }; exit_with", 0)
    done = subprocess.run(
        ["bash", "-c", tutorial.script([good, bad, good])], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "exit code 3 instead of 0\n")
    assert done.stdout.count("$ ") == 2

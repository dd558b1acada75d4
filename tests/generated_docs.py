"""`make docs`: write what the code knows into the pages of `docs/`, between marks.

    <!-- generated: rules -->
    …
    <!-- end -->

The words come from where a thing is declared: the help of a command or option, the first line of a part's docstring,
the meaning of an exit code, the default of a field. `tests/test_docs.py` fails if a page is stale.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from assets.commands.cli import app
from tests.training.data.filter.pages import reasons_of
from tests.training.pretrain.shapes import preset_shape
from training.contract.parts.outside import NoSettings
from training.contract.process.exit_codes import MEANINGS
from training.data.filter.rules import RULES
from training.posttrain.rewards import REWARDS
from training.pretrain.models.presets import PRESETS
from training.pretrain.optim.optimizers import OPTIMIZERS

DOCS = Path(__file__).parent.parent / "docs"
COMMON = ("--profile", "--root", "--json")
BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n\n)(.*?)(\n<!-- end -->\n)", re.DOTALL)


def commands() -> Iterator[str]:
    """Yield an item for each command, with what must be given and what its help says first, and its own options."""
    for name, command in _commands().items():
        needed = [_word(one) for one in command.params if one.param_type_name == "argument" or one.required]
        yield item(f"**`pedigree {' '.join([name, *needed])}`**: {_first(command.help or '')}")
        yield from (_option(one, indent=2) for one in _options(command) if one.opts[0] not in COMMON)


def common_options() -> Iterator[str]:
    """Yield an item for each option that most commands take."""
    for words in COMMON:
        takes = {name: one for name, command in _commands().items() for one in _options(command) if words in one.opts}
        without = ", ".join(f"`{name}`" for name in _commands() if name not in takes)
        yield _option(next(iter(takes.values())), f" (not for {without})")


def _commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option"]


def _word(parameter: Any) -> str:
    word = parameter.name.upper() + (" …" if parameter.nargs == -1 else "")
    if parameter.param_type_name == "option":
        return f"{parameter.opts[0]} {word}"
    return word if parameter.required else f"[{word}]"


def _option(option: Any, of: str = "", *, indent: int = 0) -> str:
    is_told = not option.is_flag and isinstance(option.default, int | float | Path)
    default = f" (default {option.default})" if is_told else ""
    return item(f"`{'`, `'.join(option.opts)}`{of}: {option.help}{default}", indent)


def exit_codes() -> Iterator[str]:
    """Yield the rows of the table of exit codes."""
    yield from ("| code | means |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in MEANINGS.items())


def rules() -> Iterator[str]:
    """Yield an item for each filter rule, with its reasons to drop a page."""
    for name, rule in RULES.items():
        reasons = ", ".join(f"`{reason}`" for reason in reasons_of(rule))
        said = f" Reasons: {reasons}." if reasons else ""
        yield item(f"`{name}`: {_docstring(f'training.data.filter.rules.{name}')}{said}")


def optimizers() -> Iterator[str]:
    """Yield an item for each optimizer, with the settings that it alone has."""
    for name, optimizer in OPTIMIZERS.items():
        yield item(f"`{name}`: {_docstring(f'training.pretrain.optim.optimizers.{name}')}{_fields(optimizer.settings)}")


def rewards() -> Iterator[str]:
    """Yield an item for each reward, with its settings."""
    for name, reward in REWARDS.items():
        yield item(f"`{name}`: {_docstring(f'training.posttrain.rewards.{name}')}{_fields(reward.settings)}")


def presets() -> Iterator[str]:
    """Yield the rows of the table of presets."""
    yield from ("| preset | parameters |", "|---|---|")
    for name, preset in PRESETS.items():
        active = preset_shape(name).active_parameter_count
        of_them = f", {active:,} for a token" if active != preset.parameters else ""
        yield f"| `{name}` | {preset.parameters:,}{of_them} |"


def _docstring(module: str) -> str:
    """Return the first paragraph of a module's docstring, without the module's name before it."""
    text, name = _first(importlib.import_module(module).__doc__ or ""), module.rpartition(".")[2]
    return text[len(name) + 2 :] if text.lower().startswith(f"{name}: ") else text


def _first(text: str) -> str:
    """Return the first paragraph of a text as one line."""
    return " ".join(text.strip().partition("\n\n")[0].split())


def _fields(record: type) -> str:
    """Return the settings of a record with their defaults as a sentence; empty if it has none."""
    if record is NoSettings:
        return ""
    listed = ", ".join(f"`{one.name}` ({_value(one.default)})" for one in dataclasses.fields(record))
    return f" Settings: {listed}."


def _value(default: Any) -> str:
    return "null" if default is None else f"`{default}`" if isinstance(default, str) else f"{default:g}"


def item(text: str, indent: int = 0) -> str:
    """Return an item of a list in lines of at most 120 characters."""
    space, whole = " " * indent, {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, 120, initial_indent=f"{space}- ", subsequent_indent=f"{space}  ", **whole)


BLOCKS = {
    "commands": commands,
    "common-options": common_options,
    "exit-codes": exit_codes,
    "rules": rules,
    "optimizers": optimizers,
    "rewards": rewards,
    "presets": presets,
}


def pages(docs: Path = DOCS) -> Iterator[tuple[Path, str, str]]:
    """Yield each page of a folder that has blocks, its text, and the text with the blocks as the code gives them."""
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text("utf-8")
        if BLOCK.search(text):
            yield path, text, BLOCK.sub(_block, text)


def _block(found: re.Match[str]) -> str:
    lines = "\n".join(BLOCKS[found[2]]())
    return f"{found[1]}{lines}\n{found[4]}"


if __name__ == "__main__":
    for path, text, fresh in pages():
        if text != fresh:
            path.write_text(fresh, "utf-8")
            print(f"wrote {path.relative_to(DOCS.parent)}")

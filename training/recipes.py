"""Recipe files: found by name, read as YAML, laid over their bases, and checked into a `Recipe`.

The caller names the folders. `extends` names a base in the same folder or in one of those, to any depth; a variant
lists only its differences. `model.preset` stands for a known shape (training/pretrain/models/presets.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training.names import check_name
from training.posttrain.align.method import method_of
from training.posttrain.passed_through import check_passed_through
from training.pretrain.models.presets import PRESETS
from training.recipe import Recipe
from training.records import RecipeError, read_record
from training.secrets import masked, secret_in, yaml_problem

# What a variant does not inherit from its base: it would do something in the base's name, or unasked.
NOT_INHERITED = (("promote", "model_name"), ("automation",))


class RecipeFiles:
    """The recipes of some folders; the first folder that has a name wins. Each file is read once."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._read: dict[Path, dict[str, Any]] = {}

    def find(self, name_or_path: str) -> Path:
        """The file of a recipe given by name or path. RecipeError lists the names there are."""
        path = Path(name_or_path)
        if path.suffix in (".yaml", ".yml"):
            if not path.is_file():
                raise RecipeError(f"recipe file {name_or_path} does not exist")
            return path
        for folder in self._folders:
            candidate = folder / f"{name_or_path}.yaml"
            if candidate.is_file():
                return candidate
        names = sorted({path.stem for path in self.paths()})
        raise RecipeError(f"no recipe is called {name_or_path!r}; there are: {', '.join(names)}")

    def paths(self) -> list[Path]:
        """Every recipe file, folder by folder, those of a folder by name."""
        return [path for folder in self._folders if folder.is_dir() for path in sorted(folder.glob("*.yaml"))]

    def load(self, name_or_path: str) -> Recipe:
        """The recipe given by name or path. RecipeError gives file, field, value and what is right."""
        path = self.find(name_or_path)
        data = self.resolved(path)
        try:
            return recipe_of(data)
        except RecipeError as error:
            raise RecipeError(f"{path.name}: {error}") from None

    def resolved(self, path: Path) -> dict[str, Any]:
        """The mapping in a recipe file, laid over those of its bases.

        The model is registered under the recipe's own name where `promote.model_name` gives no other.
        """
        data = self._over_bases(path, ())
        promote = data.get("promote")
        if isinstance(promote, dict) and isinstance(data.get("name"), str):
            data = {**data, "promote": {"model_name": data["name"], **promote}}
        return data

    def _over_bases(self, path: Path, variants: tuple[Path, ...]) -> dict[str, Any]:
        """One file over its bases. Each of `variants` extends the next, and the last one extends this file."""
        data = dict(self._mapping(path))
        base = data.pop("extends", None)
        if base is None:
            return data
        variants = (*variants, path.resolve())
        sibling = path.parent / f"{base}.yaml"
        base_path = sibling if sibling.is_file() and sibling != path else self.find(str(base))
        if base_path.resolve() in variants:
            circle = (*variants[variants.index(base_path.resolve()) :], base_path)
            raise RecipeError(
                f"{variants[0].name}: {' extends '.join(one.stem for one in circle)}; a recipe cannot be its own base"
            )
        return _variant(self._over_bases(base_path, variants), data)

    def _mapping(self, path: Path) -> dict[str, Any]:
        key = path.resolve()
        if key not in self._read:
            self._read[key] = with_preset(read_yaml(path))
        return self._read[key]


def recipe_of(data: Mapping[str, Any]) -> Recipe:
    """The checked recipe from the mapping of a resolved recipe file."""
    refuse_secrets(data)
    if isinstance(data.get("name"), str):  # before the names that are made of it
        check_name(data["name"], "name")
    recipe = read_record(Recipe, data)
    check_passed_through("SFTConfig", recipe.sft.trl, where="sft")
    check_passed_through(method_of(recipe.align.method).config, recipe.align.trl, where="align")
    return recipe


def refuse_secrets(data: Any, where: str = "") -> None:
    """RecipeError for an address that holds a password, a token or a signature, in any text of a recipe."""
    if isinstance(data, dict):
        for name, value in data.items():
            refuse_secrets(str(name), where)
            refuse_secrets(value, f"{where}.{name}" if where else str(name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            refuse_secrets(value, f"{where}[{number}]")
    elif isinstance(data, str) and (what := secret_in(data)):
        raise RecipeError(
            f"{masked(where)}: {masked(data)} holds {what}. A recipe is kept with everything made of it, for all to"
            " see. Leave it out: fsspec takes what s3, gs and the like need from environment variables"
            " (FSSPEC_S3_SECRET …) and its configuration files; from a web server fetch the file beforehand, and name"
            " it as data://"
        )


# A variant over its base


def _variant(base: dict[str, Any], differences: dict[str, Any]) -> dict[str, Any]:
    """A variant's differences laid over its base.

    It does not inherit what is the base's alone, nor a gate on an exam that it neither sits nor names.
    """
    for place in NOT_INHERITED:
        base = _without(base, place)
    result = merged(base, differences)
    evaluation, promote = result.get("evaluation"), result.get("promote")
    if not isinstance(evaluation, dict) or not isinstance(promote, dict):
        return result
    suites = {suite.get("name") for suite in evaluation.get("suites") or () if isinstance(suite, dict)}
    written = _at(differences, ("promote", "min_scores")) or {}
    for suite in (_at(base, ("promote", "min_scores")) or {}).keys() - suites - written.keys():
        result = _without(result, ("promote", "min_scores", suite))
    return result


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it; mappings merge (an empty one clears), everything else is replaced."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and value and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def _at(data: Any, place: tuple[str, ...]) -> Any:
    """The value at a place in nested mappings; None where there is none."""
    for name in place:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _without(data: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    """Nested mappings without the value at a place."""
    first, *rest = place
    if first not in data:
        return data
    left = {name: value for name, value in data.items() if name != first}
    return {**left, first: _without(data[first], tuple(rest))} if rest and isinstance(data[first], dict) else left


# Reading a file


def with_preset(data: dict[str, Any]) -> dict[str, Any]:
    """A recipe file's mapping with `model.preset` replaced by the preset's fields, under the file's own.

    The resolved recipe gives the shape itself, so naming a preset and writing it out are the same recipe.
    """
    model = data.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return data
    name = model["preset"]
    if name not in PRESETS:
        raise RecipeError(f"model.preset: {name!r} is not one of {', '.join(PRESETS)}")
    own = {key: value for key, value in model.items() if key != "preset"}
    return {**data, "model": merged(PRESETS[name].model, own)}


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping. RecipeError gives the line of a syntax error."""
    import yaml

    try:
        data = _parsed(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise RecipeError(f"{path.name}: not readable as YAML: {yaml_problem(error)}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path.name}: not UTF-8 from byte {error.start} on; save it as UTF-8") from None
    if not isinstance(data, dict):
        raise RecipeError(f"{path.name}: expected a mapping of fields, got {type(data).__name__}")
    return data


def _parsed(text: str) -> Any:
    """The value of a YAML text, by libyaml where PyYAML has it.

    A text that libyaml refuses is read again by PyYAML's own parser, whose errors are the same on every machine.
    """
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError:
        return yaml.safe_load(text)

"""Recipe files: find them by name, merge them with their bases, and check them into a `Recipe`.

The caller names the folders. `extends` names a base in the same folder or in one of the folders of bases; a base can
extend another. A variant lists only its differences. `model.preset` stands for a known shape
(training/pretrain/models/presets.py), `evaluation.preset` for suites at hand (exam_presets.py), and `snapshots: all` of
a section for the names of all snapshots.

A file in a subfolder `bases` is only a base: it names no snapshots, so it is found by name but is not listed as a
recipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from training.contract.identity.generated_sources import SOURCES
from training.contract.records import (
    RecipeError,
    all_of,
    as_json,
    no_such,
    read_record,
    unknown_names,
    uris_in,
    write_record,
)
from training.contract.scopes import asks_for
from training.contract.secrets import masked, secret_in
from training.contract.stage import Asset
from training.contract.user_input.bounded import check_bounds, check_texts, check_values
from training.contract.user_input.names import check_name
from training.contract.user_input.plain_data import read_yaml
from training.data.tokens.tokenizer_settings import SPECIAL_TOKENS
from training.pretrain.models.presets import PRESETS
from training.recipe.exam_presets import with_exam_preset
from training.recipe.recipe import Recipe, check_continued
from training.recipe.values import BOUNDS, VALUES, check_needed, check_rows
from training.stages import ASSETS

ADOPTED = ("model", "tokenizer")  # fields of `adopt` that name a folder
BASES = "bases"
SUFFIXES = (".yaml", ".yml")
ALL = "all"
OF_SNAPSHOTS = ("tokenizer", "quality")  # sections that name snapshots

# Fields that a variant does not inherit: it would pass for its base, register a model under the base's name, or be
# rebuilt unasked.
NOT_INHERITED = (("name",), ("promote", "model_name"), ("automation",))


OF_RECIPE = frozenset(one.name for one in fields(Recipe))


class RecipeFiles:
    """The recipe files of some folders. If two folders hold the same name, the first wins. Each file is read once.

    A base is searched in `bases`, or else in the same folders: what a root keeps of an earlier run is no base.

    A recipe is checked by the `checks` of each of `assets` that it has.

    A section that hundreds of variants inherit from one base is read once too: all their mappings share one object,
    which is never changed.
    """

    def __init__(
        self, folders: Iterable[Path], assets: Iterable[Asset] = ASSETS, *, bases: Iterable[Path] | None = None
    ) -> None:
        self._folders, self._assets = tuple(folders), tuple(assets)
        self._bases = self._folders if bases is None else tuple(bases)
        self._read: dict[Path, dict[str, Any]] = {}
        self._sections: dict[tuple[str, int], tuple[Any, Any]] = {}  # by name and id(): what was read, and its record

    def find(self, name_or_path: str) -> Path:
        """Return the file of a recipe given by name or path. Raise RecipeError, with all names, if there is none."""
        path = Path(name_or_path)
        if path.suffix in SUFFIXES:
            if not os.path.isfile(path):
                raise RecipeError(f"recipe file {name_or_path} does not exist")
            return path
        return _found(name_or_path, self._folders)

    def paths(self) -> list[Path]:
        """Return every recipe file, folder by folder, sorted by name within a folder."""
        return _files(self._folders)

    def load(self, name_or_path: str) -> Recipe:
        """Return the checked recipe given by name or path.

        Raise RecipeError if it is wrong; the message gives the file, the field, the value and what would be right.
        """
        path = self.find(name_or_path)
        if path.parent.name == BASES:
            raise RecipeError(
                f"{path.stem} is a base and no recipe, for it names no snapshots; write `extends: {path.stem}`, a name"
                " and snapshots into a file, or let `pedigree init FOLDER` do it"
            )
        data = self.resolved(path)
        try:
            sections = {name: self._record_of(name, section) for name, section in data.items()}
            recipe = recipe_of(sections, self._assets)
            if first := recipe.pretrain.continues.recipe:
                check_continued(self.load(first), recipe)
        except RecipeError as error:
            raise error.in_file(path.name) from None
        for name, section in data.items():
            if is_dataclass(record := getattr(recipe, name)) and not _names_all(section):
                self._sections[name, id(section)] = section, record  # the section too, so that its id stays its own
        return recipe

    def _record_of(self, name: str, section: Any) -> Any:
        """Return the record that was already made from this very section; without one, return the section itself."""
        return self._sections.get((name, id(section)), (None, section))[1]

    def resolved(self, path: Path, longer: tuple[Path, ...] = ()) -> dict[str, Any]:
        """Return the content of a recipe file merged over that of its bases, as a mapping.

        `promote.model_name` becomes the recipe's own name if the file does not give it. Raise RecipeError if a variant
        has no name.
        """
        own = self._mapping(path)
        if "extends" in own and "name" not in own:
            raise RecipeError(
                f"{path.name}: name: missing; a variant needs a name of its own, because its artifacts and its model"
                f" would pass for those of {own['extends']}"
            )
        data = with_adopted(self._over_bases(path, ()), own, path.name)
        if isinstance(teacher := _at(data, ("pretrain", "distill", "teacher")), str) and teacher.strip():
            from training.adopt.folder import check_teacher

            try:
                check_teacher(teacher)
            except RecipeError as error:
                raise error.in_file(path.name) from None
        data = self._with_continued(data, path, longer)
        promote = data.get("promote")
        if isinstance(promote, dict) and isinstance(data.get("name"), str):
            data = {**data, "promote": {"model_name": data["name"], **promote}}
        return data

    def _with_continued(self, data: dict[str, Any], path: Path, longer: tuple[Path, ...]) -> dict[str, Any]:
        """Return a resolved recipe with the budgets of the training that it continues, if it names a recipe there.

        Each of `longer` continues the next, and the last one continues this file; a circle raises RecipeError.
        """
        given = _at(data, ("pretrain", "continues"))
        name = given.get("recipe") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(name, str) or not name:
            return data
        where = "pretrain.continues"
        try:
            first = self.find(name)
            if first.resolve() in (longer := (*longer, path.resolve())):
                raise RecipeError(f"{where}.recipe: {name!r} goes on with this training; name one before it")
            pretrain = self.resolved(first, longer).get("pretrain")
            tokens = [*(_at(pretrain, ("continues", "tokens")) or ()), _at(pretrain, ("tokens",))]
            if not isinstance(tokens[-1], int):
                raise RecipeError(f"{where}.recipe: {name} has pretrain.tokens: {tokens[-1]}; a number is right")
            if given.get("tokens") not in (None, [], tokens):
                raise RecipeError(f"{where}.tokens: {given['tokens']}, and {name} has {tokens}; leave the field out")
        except RecipeError as error:
            raise error.in_file(path.name) from None
        return merged(data, {"pretrain": {"continues": {"tokens": tokens}}})

    def _over_bases(self, path: Path, variants: tuple[Path, ...]) -> dict[str, Any]:
        """Return the mapping of one file merged over its bases.

        Each of `variants` extends the next, and the last one extends this file; a circle raises RecipeError.
        """
        data = dict(self._mapping(path))
        base = data.pop("extends", None)
        if base is None:
            return data
        variants = (*variants, path.resolve())
        sibling = path.parent / f"{base}.yaml"
        base_path = sibling if sibling.is_file() and sibling != path else self._base(str(base))
        if base_path.resolve() in variants:
            circle = (*variants[variants.index(base_path.resolve()) :], base_path)
            raise RecipeError(
                f"{variants[0].name}: {' extends '.join(one.stem for one in circle)}; a recipe cannot be its own base"
            )
        return _variant(self._over_bases(base_path, variants), data, path.name)

    def _base(self, name_or_path: str) -> Path:
        if Path(name_or_path).suffix in SUFFIXES:
            return self.find(name_or_path)
        return _found(name_or_path, self._bases)

    def _mapping(self, path: Path) -> dict[str, Any]:
        if path not in self._read:
            self._read[path] = with_exam_preset(with_preset(read_yaml(path)))
        return self._read[path]


def _found(name: str, folders: Iterable[Path]) -> Path:
    """Return the file of a recipe or base of that name. Raise RecipeError, with all names, if there is none."""
    for folder in folders:
        for candidate in (folder / f"{name}.yaml", folder / BASES / f"{name}.yaml"):
            if os.path.isfile(candidate):  # false too for a name that is too long
                return candidate
    names = sorted({path.stem for path in _files(folders)})
    raise RecipeError(no_such(f"no recipe is called {name!r}", name, names))


def _files(folders: Iterable[Path]) -> list[Path]:
    return [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.yaml"))]


def recipe_of(data: Mapping[str, Any], assets: Iterable[Asset] = ASSETS) -> Recipe:
    """Check the mapping of a resolved recipe file, and return it as a Recipe that can make those of `assets` it has.

    A section may be the record that was made of it for another recipe.
    """
    check_texts(data)
    refuse_secrets(data)
    if not isinstance(data.get("name", ""), str):
        raise RecipeError(f"name: expected str, got {data['name']!r}")
    if "name" in data:  # before the names that are made of it
        check_name(data["name"], "name")
    data, problems = _without_unknown_preset(data)
    _check_begin(data.get("sft"))
    check_bounds(data, BOUNDS)
    try:
        recipe = read_record(Recipe, _with_all_snapshots(data))
    except RecipeError as error:
        raise RecipeError(*problems, *error.problems) from error
    if problems:
        raise RecipeError(*problems)
    new = [name for name, section in data.items() if name in OF_RECIPE and not is_dataclass(section)]
    whole = (partial(check, recipe) for check in (check_needed, check_rows))
    all_of(*(partial(check_values, getattr(recipe, name), name, VALUES) for name in new), *whole)
    asked = (asset for asset in assets if _has(recipe, asset))
    all_of(*(partial(check, recipe) for check in dict.fromkeys(check for asset in asked for check in asset.checks)))
    return recipe


def _has(recipe: Recipe, asset: Asset) -> bool:
    """Whether a recipe has the asset, at least in one partition."""
    if asset.scope == "rung":
        return bool(recipe.ladder.rungs)
    return bool(recipe.snapshots) if asset.scope == "snapshot" else asks_for(recipe, *asset.sections)


def _check_begin(sft: object) -> None:
    """Raise RecipeError if `sft.from_step` is a name such as `sft-step-50`, which means a step of another training."""
    begin = sft.get("from_step") if isinstance(sft, dict) else None
    if isinstance(begin, str) and begin:
        raise RecipeError(
            f"sft.from_step: {begin!r}; the number of a step that pretrain.keep keeps is right. To begin with a kept"
            " step of another training, export it, and name its folder in adopt.model of another recipe"
        )


def _without_unknown_preset(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return a recipe's mapping without a preset that `with_preset` did not know, and a sentence about it."""
    model = data.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return data, []
    own = {key: value for key, value in model.items() if key != "preset"}
    return {**data, "model": own}, unknown_names("model.preset", str(model["preset"]), PRESETS)


def _with_all_snapshots(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's mapping with `snapshots: all` of a section replaced by the names of the recipe's snapshots."""
    found = data.get("snapshots")
    names = [one["name"] for one in found if isinstance(one, dict) and "name" in one] if isinstance(found, list) else []
    return {
        name: {**section, "snapshots": names} if name in OF_SNAPSHOTS and _names_all(section) else section
        for name, section in data.items()
    }


def _names_all(section: Any) -> bool:
    """Whether a section says `all` snapshots, so that its record depends on the recipe's own snapshots."""
    return isinstance(section, dict) and section.get("snapshots") == ALL


def reads_of_the_kitchen(recipe: Recipe) -> str:
    """Return a warning if a recipe whose snapshots are not the kitchen's reads a file of the kitchen; otherwise ""."""
    if any(snapshot.source in SOURCES for snapshot in recipe.snapshots):
        return ""
    places = [
        f"{section} reads {uri}"
        for section in (one.name for one in fields(recipe))
        for uri in dict.fromkeys(uris_in(getattr(recipe, section)))
        if uri.partition("://")[0] in SOURCES
    ]
    if not places:
        return ""
    return (
        f"{recipe.name}: {', '.join(places)}; the kitchen is the generated world of the demonstration and says nothing"
        " about this corpus. Name your own files there, or start from `extends: base`"
    )


def refuse_secrets(data: Mapping[str, Any]) -> None:
    """Raise RecipeError if any text in a recipe holds a URL with a password, a token or a signature.

    Equal sections are checked only once, because hundreds of variants of a recipe may differ in only a section or two.
    """
    for name, section in data.items():
        if is_dataclass(section):
            continue  # looked at when it was read
        if (text := as_json(section)) is None:
            _refuse_secrets({name: section})
        else:
            _refuse_once(str(name), text)


@lru_cache(maxsize=4096)
def _refuse_once(name: str, section: str) -> None:
    _refuse_secrets({name: json.loads(section)})


def _refuse_secrets(data: Any, where: str = "") -> None:
    if isinstance(data, dict):
        for name, value in data.items():
            _refuse_secrets(str(name), where)
            _refuse_secrets(value, f"{where}.{name}" if where else str(name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            _refuse_secrets(value, f"{where}[{number}]")
    elif isinstance(data, str) and (what := secret_in(data)):
        raise RecipeError(
            f"{masked(where)}: {masked(data)} holds {what}. A recipe is kept with everything made of it, for all to"
            " see. Leave it out: fsspec takes what s3, gs and the like need from environment variables"
            " (FSSPEC_S3_SECRET …) and its configuration files; from a web server fetch the file beforehand, and name"
            " it as data://"
        )


# A variant over its base


def _variant(base: dict[str, Any], differences: dict[str, Any], file: str) -> dict[str, Any]:
    """Return a base's mapping with a variant's differences merged over it.

    The variant does not inherit the fields in NOT_INHERITED. Nor does it inherit a minimum score for a suite that it
    neither evaluates nor lists in its own `promote.min_scores`, or `pretrain.watch` with a suite that it does not
    evaluate. Raise RecipeError if the variant's section is an empty mapping, which could mean the base's section or
    none of it.
    """
    emptied = (name for name, value in differences.items() if value == {} and isinstance(base.get(name), dict))
    for name in (name for name in emptied if base[name]):
        raise RecipeError(
            f"{file}: {name}: an empty mapping, which would clear {', '.join(base[name])} of"
            f" {base.get('name', 'its base')}; leave {name} out to keep them, or write the fields that differ"
        )
    for place in NOT_INHERITED:
        base = _without(base, place)
    evaluation = merged(base, differences).get("evaluation")
    if not isinstance(evaluation, dict):
        return merged(base, differences)
    changed = differences.get("evaluation")
    if isinstance(changed, dict) and "suites" in changed and "preset" not in changed:
        base = _without(base, ("evaluation", "preset"))
    given, scores = evaluation.get("suites"), _at(base, ("promote", "min_scores"))
    suites = [one.get("name") for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    for suite in scores if isinstance(scores, dict) else ():
        if suite not in suites:
            base = _without(base, ("promote", "min_scores", suite))
    watched = _at(base, ("pretrain", "watch", "suites"))
    if isinstance(watched, list) and any(suite not in suites for suite in watched):
        base = _without(base, ("pretrain", "watch"))
    return merged(base, differences)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` merged over it. An empty mapping clears; values other than mappings are replaced."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and value and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def _at(data: Any, place: tuple[str, ...]) -> Any:
    """Return the value at a path of keys in nested mappings, or None if there is none."""
    for name in place:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _without(data: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    """Return nested mappings without the value at a path of keys."""
    first, *rest = place
    if first not in data:
        return data
    left = {name: value for name, value in data.items() if name != first}
    return {**left, first: _without(data[first], tuple(rest))} if rest and isinstance(data[first], dict) else left


# Reading a file


def with_preset(data: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe file's mapping with `model.preset` replaced by the preset's fields.

    Fields that the file gives itself win over the preset's. The resolved recipe holds the shape itself, so a file that
    names a preset and a file that writes its fields out are the same recipe. An unknown preset stays for `recipe_of`.
    """
    model = data.get("model")
    name = model.get("preset") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(name, str) or name not in PRESETS:
        return data
    own = {key: value for key, value in model.items() if key != "preset"}
    return {**data, "model": merged(PRESETS[name].model, own)}


def with_adopted(data: dict[str, Any], own: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return a resolved recipe whose `model` is the shape of the model that it adopts, with the size of its vocabulary.

    Of a tokenizer that is adopted alone, only the size of the vocabulary is filled in. Nothing changes if nothing is
    adopted, or if the folder is not on this machine; what is made of it is then unavailable. `own` is the mapping of
    the file itself, which must not name another shape.
    """
    adopt = data.get("adopt")
    given = adopt if isinstance(adopt, dict) else {}
    named = {name: given[name] for name in ADOPTED if isinstance(given.get(name), str) and given[name]}
    if not named:
        return data
    from training.adopt.folder import shape_of, size_of  # imports parquet, which takes time that other recipes save

    try:
        if "model" not in named:
            return _with_vocabulary(data, size_of(named["tokenizer"], _special_tokens(data)))
        shape = shape_of(named["model"], has_corpus=bool(data.get("snapshots")))
    except RecipeError as error:
        raise error.in_file(file) from None
    if shape is None:
        return data
    adopted = write_record(shape.section())
    written = own.get("model")
    for name, value in (written if isinstance(written, dict) else {}).items():
        if name in adopted and (value or 0) != (adopted[name] or 0):
            raise RecipeError(
                f"{file}: model.{name}={value}: the adopted model has {adopted[name]}; leave the section model out"
            )
    return _with_vocabulary({**data, "model": adopted}, shape.vocab_size)


def _special_tokens(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the special tokens that a resolved recipe names, or else the default ones."""
    tokenizer = data.get("tokenizer")
    named = tokenizer.get("special_tokens") if isinstance(tokenizer, dict) else None
    return tuple(named) if isinstance(named, list) else SPECIAL_TOKENS


def _with_vocabulary(data: dict[str, Any], size: int | None) -> dict[str, Any]:
    """Return a resolved recipe with the size of an adopted vocabulary; the recipe itself if the size is not known."""
    tokenizer = data.get("tokenizer")
    if size is None:
        return data
    return {**data, "tokenizer": {**(tokenizer if isinstance(tokenizer, dict) else {}), "vocabulary": size}}

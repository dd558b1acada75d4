"""Which data a teacher was trained on, found in the records of the artifacts behind it.

The search begins with the teacher's record and goes up its inputs, to the teacher's own teacher too. It ends at the
assets that the scan for contamination reads. What is behind a model from outside, or behind an artifact that is no
longer there, is unknown.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.contamination.trained_on import DECLARED, SCANNED
from training.contract.artifact import Damaged, find
from training.contract.job import InputArtifact
from training.contract.records import RecipeError, read_record, uris_in

FROM_OUTSIDE = "a model from outside"
IDENTITY = ("asset", "partition", "fingerprint", "digest")


@dataclass(kw_only=True, slots=True)
class TaughtBy:
    """The data behind a teacher: artifacts that can be scanned, by digest, system prompts, and what is unknown."""

    data: dict[str, InputArtifact] = field(default_factory=dict)
    system_prompts: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def as_settings(self) -> list[dict[str, str]]:
        """Return the artifacts as plain data; of these fields, only asset and digest decide a fingerprint."""
        artifacts = sorted(self.data.values(), key=lambda item: (item.asset, item.digest))
        return [{name: getattr(item, name) for name in IDENTITY} | {"path": item.path} for item in artifacts]


def taught_by(folder: Path, sections: type) -> TaughtBy:
    """Return the data that the teacher in a folder, and the models behind it, were trained on.

    `sections` is the record of a recipe, by which settings that name files are recognised.
    """
    found = TaughtBy()
    _follow(folder, FROM_OUTSIDE, None, found, set(), typing.get_type_hints(sections))
    return found


def _follow(
    folder: Path, name: str, digest: str | None, found: TaughtBy, seen: set[Path], sections: dict[str, Any]
) -> None:
    """Add what is behind the artifact in a folder. Without a record, or with another digest, `name` is unknown."""
    try:
        made = find(folder)
    except Damaged:
        made = None
    if made is None or digest not in (None, made.digest):
        found.unknown.add(name)
        return
    if folder in seen:
        return
    seen.add(folder)
    record = made.record
    asset, settings = record["asset"], record["settings"]
    declared = DECLARED.get(asset)
    is_model = declared is not None and declared.stage.distributed
    if declared is None or not record["inputs"] or (not is_model and _names_files(settings, sections)):
        found.unknown.add(asset)
    if teacher := settings.get("teacher"):
        _follow(Path(teacher["path"]), FROM_OUTSIDE, None, found, seen, sections)
    if is_model and (prompt := settings.get("sft", {}).get("system_prompt")):
        found.system_prompts.add(prompt)
    for item in _inputs(folder, record):
        if item.asset not in SCANNED:
            _follow(Path(item.path), item.asset, item.digest, found, seen, sections)
        elif (there := find(Path(item.path))) and there.digest == item.digest:
            found.data[item.digest] = item
        else:
            found.unknown.add(item.asset)


def _inputs(folder: Path, record: dict[str, Any]) -> Iterator[InputArtifact]:
    """Yield the inputs of a record. All artifacts of a root are beside each other, so a root may have moved."""
    for item in record["inputs"]:
        path = folder.parent.parent / item["asset"] / item["fingerprint"]
        yield InputArtifact(**{name: item[name] for name in IDENTITY}, path=str(path))


def _names_files(settings: dict[str, Any], sections: dict[str, Any]) -> bool:
    """Whether the settings of a record name a file, as far as their sections are those of a recipe."""
    for name, section in settings.items():
        kind = sections.get(name)
        if isinstance(section, dict) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
            try:
                if any(uris_in(read_record(kind, section, where=name))):
                    return True
            except RecipeError:  # written by other code, so that nobody can tell
                return True
    return False

"""Whether a recipe's model and everything it is made from are undamaged, and what the registry says of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from assets.registry.champion import champion_asked, is_stale, named
from assets.registry.decision import DECISION, lineage_of, model_of
from assets.state.chain import CHAIN
from assets.state.tombstones import erased_by
from training.contract import artifact
from training.contract.files.checked import FOREIGN
from training.contract.files.stored_root import not_stored, stored_root
from training.contract.scopes import last_model

if TYPE_CHECKING:
    from assets.state.cell import Comparison
    from resources.tracking.registry import Registry, Version
    from training.contract.artifact import Artifact

REPAIR = "`pedigree verify RECIPE --mend` sets aside what has a damaged file, and a run puts right what is damaged"
BY_HAND = ("override", "rollback")


def unfit(comparison: Comparison) -> list[str]:
    """Return the reasons that forbid registering or promoting this model, whatever the decision says.

    Everything that the model is made from must exist, have passed its gates, and be undamaged. The result is empty if
    so.
    """
    lines = []
    for cell in lineage_of(comparison):
        if cell.artifact is None:
            lines.append(f"{cell.asset} [{cell.partition}] is not made as the recipe asks for it")
        elif cell.artifact.failed_gates:
            lines.append(f"{cell.asset} [{cell.partition}] was refused by {cell.artifact.failed_gates[0]['name']}")
    return lines + damage(comparison, before_promotion=True)


def damage(comparison: Comparison, *, before_promotion: bool = False) -> list[str]:
    """One line for each damaged record or file among the artifacts behind a recipe's model and its decision.

    The records of all these artifacts are checked. Of the files, by default only those of the decision and its inputs,
    which include the model, are compared with their checksums. With `before_promotion`, so are the files of every other
    stage whose output a model makes. For all remaining files, which may be terabytes, it only checks that they exist,
    have the recorded size, and that there is no file beside them. `pedigree verify` reads every file.
    """
    decision = comparison.cells[DECISION, comparison.recipe.name]
    cells = (*lineage_of(comparison), decision)
    lines = [f"{cell.asset} [{cell.partition}]: {line}" for cell in cells if cell.is_damaged for line in cell.reasons]
    for cell in cells:
        is_near = cell is decision or cell.key in decision.inputs
        if cell.artifact is not None and (is_near or before_promotion):
            reads = is_near or CHAIN[cell.asset].stage.by_a_model
            lines += artifact.problems_of(cell.artifact) if reads else looked_over(cell.artifact)
            lines += erased_by(cell.artifact)[1]
    return lines


def looked_over(made: Artifact) -> list[str]:
    """Return the problems that names and sizes tell. A file that only the root's store has is looked for there."""
    files, is_stored = made.record["files"], stored_root(made.path) is not None
    away = [one for one in files if is_stored and not os.path.lexists(made.path / one["path"])]
    here = replace(made, record=made.record | {"files": [one for one in files if one not in away]})
    lines = artifact.damaged_files(here, reads=False) + (not_stored(made.path, away) if away else [])
    return lines + [f"{path}: {FOREIGN}" for path in artifact.foreign_files(made)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The state of a recipe's model in the registry.

    `version` is the model's registered version and `champion` the present champion; each is None if there is none.
    `sentence` gives the reason if the model is not promoted. `undecided` means that materializing `promoted_model`
    again may change the standing.
    """

    model_name: str
    version: str | None = None
    champion: str | None = None
    promoted: bool = False
    by_hand: bool = False  # promoted by a person, even if a gate refused it
    undecided: bool = False
    is_damaged: bool = False
    is_known: bool = True  # the registry answered
    superseded_by: str = ""  # the present champion, if this version was champion before
    sentence: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the model's state in the form of a command's JSON answer."""
        return {
            "model_name": self.model_name,
            "version": self.version,
            "champion": self.champion,
            "sentence": self.sentence,
        }


def standing(comparison: Comparison, registry: Registry) -> Standing:
    """Return the present state of the recipe's model, from the registry and the files."""
    decision, model = comparison.cells[DECISION, comparison.recipe.name].artifact, model_of(comparison).artifact
    line = registry.line()
    champion = line[-1] if line else None
    version = registry.version_of(model.digest) if model is not None else None
    known = Standing(
        model_name=registry.name,
        version=version.version if version else None,
        champion=champion.version if champion else None,
    )
    if model is None:
        return replace(known, sentence=f"{last_model(comparison.recipe)} is not made as the recipe asks for it")
    lines = damage(comparison)
    if lines:
        return replace(known, is_damaged=True, sentence=f"{lines[0]}; {REPAIR}")
    if version and champion and version.version == champion.version:
        return replace(known, promoted=True, by_hand=version.tags.get("champion.how") in BY_HAND)
    if decision is None:
        return replace(known, sentence="it was not decided whether to promote it")
    asked = champion_asked(line, comparison.root)
    if is_stale(decision, asked, model, comparison.root):
        return replace(known, undecided=True, sentence=f"it was compared with another champion than {named(champion)}")
    if decision.failed_gates:
        return replace(known, sentence=refused(decision, version))
    if version is not None and registry.was_champion(version, champion):
        by = champion.version if champion else "none"
        return replace(known, superseded_by=by, sentence=superseded(registry.name, version, champion))
    return replace(known, undecided=True, sentence="it may be promoted, and nobody has done so yet")


def refused(decision: Artifact, version: Version | None) -> str:
    """Return a sentence: a decision refused the model for these reasons, although it may be registered."""
    reasons = "; ".join(gate["evidence"].get("reason", "") for gate in decision.failed_gates)
    registered = f"registered as version {version.version}, " if version is not None else ""
    return f"{registered}refused by the gate promotion: {reasons}"


def superseded(name: str, version: Version, champion: Version | None) -> str:
    """Return a sentence: a former champion is not promoted again automatically, and which command promotes it."""
    recipe = version.tags.get("recipe", "RECIPE")
    return (
        f"version {version.version} was champion of {name} before {named(champion)}, and does not come back by"
        f" itself; `pedigree rollback {name}` or `pedigree promote {recipe} --reason TEXT` brings it back"
    )

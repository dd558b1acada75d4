"""Whether what is made already shows that a later asset of a recipe cannot be made, asked before a training begins."""

from __future__ import annotations

from assets.state.cell import Comparison
from assets.state.chain import CHAIN
from training.contract.artifact import Artifact
from training.contract.stage import InputCheck


def check_facts(comparison: Comparison) -> None:
    """Raise DataError for the first asset that is not made and cannot be made from what is made (`Asset.facts`)."""
    for asset in dict.fromkeys(cell.asset for cell in comparison.to_do()):
        for fact in CHAIN[asset].facts:
            made = _made(comparison, fact)
            if made:
                fact.check(comparison.recipe, made)


def _made(comparison: Comparison, fact: InputCheck) -> dict[str, list[Artifact]]:
    """Return the artifacts that a check is about, by asset; empty unless all of the recipe are made and sound."""
    found: dict[str, list[Artifact]] = {}
    for cell in comparison.cells.values():
        if cell.asset in fact.assets:
            if cell.artifact is None or cell.is_damaged or cell.artifact.failed_gates:
                return {}
            found.setdefault(cell.asset, []).append(cell.artifact)
    return found

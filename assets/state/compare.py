"""Compare a recipe with the artifacts under a root: which cells are made, missing, outdated or damaged.

`pedigree status`, `pedigree run`, the sensors and the schedules all decide by this comparison alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from assets.state.asked_cell import unavailable_cell
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN, partitions_of
from assets.state.kept_models import Corpora
from assets.state.made_addresses import made_places, with_made
from assets.state.references import look
from assets.state.tombstones import read_tombstones
from training.contract import artifact
from training.contract.files.stored_root import listed
from training.contract.files.stored_takedowns import bring_takedowns
from training.contract.identity.closure import current_code
from training.contract.job import DataError
from training.contract.records import varied
from training.contract.scopes import KEPT_STEPS, OPTIMIZER_FOLDER
from training.data.checksum_cache import known_under
from training.pretrain.watch.keep_settings import KeepRecipe
from training.recipe.recipe import Recipe


def compare(recipe: Recipe, root: Path, *, skip_unavailable: bool = False) -> Comparison:
    """Compare a recipe with the artifacts under a root, for the whole chain.

    Raises DataError if something that the recipe names does not exist. With `skip_unavailable`, the affected cell and
    all cells made from it are `unavailable` instead, so that automation can work on the other cells. A file of
    tombstones that was changed by hand is always an error.
    """
    cells: dict[tuple[str, str], Cell] = {}
    bring_takedowns(root)
    with listed(root), known_under(root):
        places, code = made_places(recipe, root), current_code()
        corpora = Corpora(with_made(recipe, places), root, places, code, read_tombstones(root))
        for declared in CHAIN.values():
            for partition in partitions_of(declared, corpora.recipe):
                try:
                    cell = corpora.cell(declared, partition, cells)
                except DataError as error:
                    if not skip_unavailable:
                        raise
                    cell = unavailable_cell(declared, corpora.recipe, partition, (str(error),))
                cells[cell.key] = cell
    changed = cells | dict(_changed(cells, root))
    return Comparison(recipe=recipe, root=root, cells=changed, continued=_continued(recipe, root))


def _continued(recipe: Recipe, root: Path) -> Cell | None:
    """Return the last kept step with an optimizer state from which the training of a recipe can go on.

    It is a step before the decay of the training that the recipe continues, or of one that this continues. Which ones
    were kept is seen in the root, because the other recipe may keep other steps now. None: there is no such step.
    """
    if not recipe.pretrain.continues.tokens:
        return None
    at = recipe.pretrain.continued_at[-1]
    states = (look(path.parent, KEPT_STEPS, set()).artifact for path in root.glob(f"{KEPT_STEPS}/*/{OPTIMIZER_FOLDER}"))
    steps = {step for one in states if one and (step := one.record["settings"]["kept"]["step"]) <= at}
    if not steps:
        return None
    name = recipe.pretrain.continues.recipe or recipe.name
    first = recipe.before_continued()
    own = sorted(step for step in steps if step > max(first.pretrain.continued_at, default=0))
    first = varied(first, {"name": name, "pretrain": {"keep": KeepRecipe(steps=tuple(own))}})
    before = compare(first, root, skip_unavailable=True)
    kept = [one for one in before.cells.values() if one.asset == KEPT_STEPS and one.has_state]
    return max(kept, key=lambda one: one.kept_at, default=before.continued)


def _changed(cells: Mapping[tuple[str, str], Cell], root: Path) -> Iterator[tuple[tuple[str, str], Cell]]:
    """Yield, as damaged, each cell whose record changed after other cells were made from it.

    The comparison uses the record digests that those other cells' records hold, so it notices a changed record even
    if the cell's reference was changed with it. A cell whose record only says itself that it replaced the one that
    others were made from gets a note.
    """
    held: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells.values():
        for key, item in _read_and_guarding(cell, cells):
            held.setdefault(key, {})[item["record_digest"]] = cell
    for key, by in held.items():
        cell, digests = cells[key], by.keys() - {""}
        if cell.artifact is not None and not digests <= cell.artifact.claims:
            found = look(artifact.folder_of(root, cell.asset, cell.fingerprint), cell.asset, set(digests))
            other = by[min(digests - cell.artifact.claims)]
            said = f"{found.damage or cell.artifact.path} ({other.asset} [{other.partition}] was made from it)"
            yield key, replace(cell, state="damaged", artifact=found.artifact, reasons=(*cell.reasons, said))
        elif cell.artifact is not None and (others := digests - {cell.artifact.record_digest}):
            other, said = by[min(others)], cell.artifact.own_word_on(min(others))
            said = f"{other.asset} [{other.partition}] was made from an earlier record: {said}"
            yield key, replace(cell, note="; ".join(filter(None, (cell.note, said))))


def _read_and_guarding(
    cell: Cell, cells: Mapping[tuple[str, str], Cell]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """For a made cell, yield each input and each guard, with its entry in the artifact's record.

    A guard is left out if its fingerprint is no longer the recorded one. A kept model has read earlier artifacts.
    """
    if cell.artifact is None or cell.is_kept:
        return
    yield from zip(cell.inputs, cell.artifact.record["inputs"], strict=True)
    for item in cell.artifact.record.get("guards", ()):
        yield from ((key, item) for key in cell.guards if cells[key].fingerprint == item["fingerprint"])

"""The cells of a recipe for the corpus as it is now and as it was before takedowns, and the models kept from before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from assets.state.asked_cell import asked_cell
from assets.state.cell import Cell
from assets.state.chain import CHAIN, ancestors, partitions_of
from assets.state.made_addresses import MadeAddress
from assets.state.references import Reference, look
from assets.state.tombstones import CRAWL, Tombstone, honoured
from training.contract import artifact
from training.contract.identity.closure import Code
from training.contract.stage import Asset
from training.recipe.recipe import Recipe

LEARNED = (
    "quality_models",
    "tokenizer",
)  # models of the corpus; `withdrawals.models` says what a takedown does to them
TO_LEARNED = frozenset(LEARNED).union(*map(ancestors, LEARNED))


class Corpora:
    """Makes the cells of a recipe, for the corpus as it is now and as it was after any earlier takedown.

    The earlier ones tell whether a model learned from the same corpus before pages were withdrawn from it.
    """

    def __init__(
        self, recipe: Recipe, root: Path, places: Sequence[MadeAddress], code: Code, withdrawn: Sequence[Tombstone]
    ) -> None:
        self.recipe, self._root, self._places, self._code, self._withdrawn = recipe, root, places, code, withdrawn
        self._earlier: dict[int, dict[tuple[str, str], Cell]] = {}

    def cell(
        self, declared: Asset, partition: str, cells: Mapping[tuple[str, str], Cell], number: int | None = None
    ) -> Cell:
        """Return a cell whose inputs are in `cells`, with the first `number` takedowns; None means all of them."""
        stones = self._withdrawn[:number]
        crawl = cells.get((CRAWL, partition))
        part, of = partition.partition("@")[2], crawl.fingerprint if crawl else ""
        asked = honoured(self.recipe, declared.name, part, of, self._root, stones)
        cell = asked_cell(declared, asked, partition, self._root, cells, self._places, self._code)
        if declared.name not in LEARNED or self.recipe.withdrawals.models == "retrain" or cell.reference is None:
            return cell
        if cell.state == "unavailable" or cell.reference.fingerprint == cell.fingerprint:
            return cell
        return self._kept(cell, cell.reference, len(stones)) or cell

    def _kept(self, cell: Cell, reference: Reference, stones: int) -> Cell | None:
        """Return the cell with the artifact of its reference if only takedowns separate the two; otherwise None.

        Its inputs at that time are not looked for, because they may have been removed.
        """
        folder = artifact.folder_of(self._root, cell.asset, reference.fingerprint)
        found = look(folder, cell.asset, {reference.record_digest})
        fitting = (number for number in range(stones) if self._learned(cell, number) == reference.fingerprint)
        number = next(fitting, None) if found.artifact is not None else None
        if found.artifact is None or number is None:
            return None
        while number + 1 < stones and self._learned(cell, number + 1) == reference.fingerprint:
            number += 1  # that takedown touched nothing that the model learned from
        return replace(
            cell,
            fingerprint=reference.fingerprint,
            inputs=(),
            state="damaged" if found.damage else "made",
            artifact=found.artifact,
            is_recorded=reference.digest == found.artifact.digest,
            reasons=(found.damage,) if found.damage else (),
            note=f"kept: it learned from pages that takedown {number + 1} withdrew (withdrawals.models)",
            kept_from=number,
        )

    def _learned(self, cell: Cell, number: int) -> str:
        """Return the fingerprint of a model made after `number` takedowns of the corpus; "" if the model was kept."""
        before = self._before(number)[cell.key]
        return "" if before.is_kept else before.fingerprint

    def _before(self, number: int) -> dict[tuple[str, str], Cell]:
        """Return the cells up to the models of the corpus, with only the first `number` takedowns."""
        if number not in self._earlier:
            cells = self._earlier[number] = {}
            for declared in CHAIN.values():
                if declared.name in TO_LEARNED:
                    for partition in partitions_of(declared, self.recipe):
                        cells[declared.name, partition] = self.cell(declared, partition, cells, number)
        return self._earlier[number]

"""Which cells are made, missing or outdated: a pure comparison of a recipe with the artifacts under a root.

`pedigree status`, `pedigree run`, the sensors and the schedules all decide by this comparison alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from assets.asked import asked_settings, replaced
from assets.chain import CHAIN, ancestors, input_partitions, partitions_of, trains
from assets.found import Reference, aside, look, put_back, read_reference, reference_path
from assets.found import write_reference as write_reference
from assets.remade import remade_inputs
from assets.tombstones import CRAWL, Tombstone, honoured, read_tombstones
from training.contract import artifact
from training.contract.artifact import MADE, Artifact, Damaged
from training.contract.identity import made_by
from training.contract.identity.closure import Code, current_code
from training.contract.job import DataError, read_job
from training.contract.records import RecipeError, differences, read_record, write_record
from training.contract.stage import Asset, Input, modules_of
from training.data.crawl.settings import SnapshotRecipe
from training.data.known import known_under
from training.recipe.recipe import SECTIONS, Recipe

START_ANEW = "pedigree/start-anew"  # the tag of a run that may begin a training again at step 0
BEGINS_ANEW = f"with --start-anew (in the UI: the tag {START_ANEW}: true)"

_RECORDS: dict[str, type] = {**SECTIONS, "snapshot": SnapshotRecipe}  # by their names in the settings of jobs
LEARNED = (
    "quality_models",
    "tokenizer",
)  # models of the corpus; `withdrawals.models` says what a takedown does to them
TO_LEARNED = frozenset(LEARNED).union(*map(ancestors, LEARNED))

INPUT_IS_ANOTHER = " is another one"  # ends the reason of a cell that is outdated because an input is

State = Literal["made", "missing", "outdated", "damaged", "unavailable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One asset in one partition: the artifact that the recipe asks for, and the one that exists.

    `artifact` is the artifact with exactly the fingerprint asked for, or None if it must be made. For a damaged cell it
    is the artifact that can be restored, if any. `is_recorded` is True if the partition's reference already points to
    that artifact, which may have been made for another recipe. `reference` is the partition's reference, or None if
    there is none or it cannot be read. `reasons` lists the differing fields of an outdated cell, the damage of a
    damaged one, or why a cell is unavailable.
    """

    asset: str
    partition: str
    fingerprint: str
    settings: dict[str, Any]
    inputs: tuple[tuple[str, str], ...]  # (asset, partition)
    state: State
    artifact: Artifact | None
    is_recorded: bool
    guards: tuple[tuple[str, str], ...] = ()  # (asset, partition)
    reasons: tuple[str, ...] = ()
    reference: Reference | None = None
    other_code: tuple[str, ...] = ()  # parts of the code that have changed since the artifact was made
    was_there: bool = False  # the folder of this fingerprint held an artifact, whole or not, when it was compared
    note: str = ""  # a remark from outside this comparison, such as that a promotion decision is stale
    kept_from: int | None = None  # takedowns that its artifact honours; None unless it is kept although there are more

    @property
    def is_done(self) -> bool:
        """Whether the artifact that is asked for is made and the partition's reference points to it."""
        return self.state == "made" and self.is_recorded

    @property
    def is_damaged(self) -> bool:
        """Whether the cell's record or reference differs from what was written."""
        return self.state == "damaged"

    @property
    def remark(self) -> str:
        """Return notes on the artifact for a person, and the number that a setting `auto` became.

        Empty if the present code made the artifact, and there is no `note` and no such setting.
        """
        if self.artifact is None:
            return ""
        resolved = self.artifact.record["notes"].get("resolved", "")
        made = made_by.in_words(self.artifact.record, self.other_code)
        return "; ".join(line for line in (self.note, resolved, made) if line)

    @property
    def is_kept(self) -> bool:
        """Whether the cell is a model that learned from the corpus before a withdrawal and was kept."""
        return self.kept_from is not None

    @property
    def way_out(self) -> str:
        """Return how a damaged cell is repaired, by the next run or by a person; empty if the cell is not damaged."""
        if self.state != "damaged":
            return ""
        if self.artifact is not None:
            return "the next run puts it right; nothing is made again"
        if trains(CHAIN[self.asset]):
            return f"put it back from a backup, or have it set aside and trained again {BEGINS_ANEW}"
        return "the next run sets it aside and makes it again"

    def is_of(self, digest: str) -> bool:
        """Whether `digest` is the digest of this cell's artifact.

        If a damaged cell has no usable artifact, the digest in its reference is compared. Without a reference to the
        cell's fingerprint, any digest is accepted.
        """
        if self.artifact is not None:
            return self.artifact.digest == digest
        known = self.reference.digest if self.reference and self.reference.fingerprint == self.fingerprint else digest
        return self.state == "damaged" and known == digest

    @property
    def part(self) -> str:
        """The name of the partition's snapshot or rung; empty for an asset of the whole recipe."""
        return self.partition.partition("@")[2]

    @property
    def place(self) -> str:
        """`asset/part`, or `asset` alone for an asset of the whole recipe; used in tags."""
        return f"{self.asset}/{self.part}" if self.part else self.asset

    @property
    def waits_for(self) -> tuple[tuple[str, str], ...]:
        """The cells that must be made before this one: its inputs and its guards."""
        return (*self.inputs, *self.guards)

    @property
    def key(self) -> tuple[str, str]:
        """The cell's asset and partition, which identify it in a comparison."""
        return self.asset, self.partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The state of every cell (an asset in a partition) of a recipe under a root; inputs come before their readers."""

    recipe: Recipe
    root: Path
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def to_do(self, until: str | None = None) -> list[Cell]:
        """Return the cells (assets in partitions) that a run must make or point to a made artifact, inputs first.

        With `until`, only the cells of that asset and of the assets that it is made from.
        """
        return [cell for cell in self.up_to(until) if not cell.is_done]

    def up_to(self, until: str | None) -> list[Cell]:
        """Return all cells; with `until`, only those of that asset and of the assets that it is made from."""
        wanted = self._assets(until)
        return [cell for cell in self.cells.values() if cell.asset in wanted]

    def _assets(self, until: str | None) -> set[str]:
        """Return the asset `until` and all assets that must be made before it; every asset if `until` is None.

        If the recipe has no cell of `until`, the ancestors come from the chain instead.
        """
        found: set[str] = {cell.asset for cell in self.cells.values()} & {until}
        if not found:
            return set(CHAIN) if until is None else ancestors(until) | {until}
        for cell in reversed(self.cells.values()):  # each cell before its inputs
            if cell.asset in found:
                found |= {asset for asset, _ in cell.waits_for}
        return found

    def refused_by(self, cell: Cell) -> Cell | None:
        """Return the first input or guard of `cell` that has a failed gate; None if there is none."""
        for key in cell.waits_for:
            made = self.cells[key].artifact
            if made is not None and made.failed_gates:
                return self.cells[key]
        return None


def compare(recipe: Recipe, root: Path, *, skip_unavailable: bool = False) -> Comparison:
    """Compare a recipe with the artifacts under a root, for the whole chain.

    Raises DataError if something that the recipe names does not exist. With `skip_unavailable`, the affected cell and
    all cells made from it are `unavailable` instead, so that automation can work on the other cells. A file of
    tombstones that was changed by hand is always an error.
    """
    cells: dict[tuple[str, str], Cell] = {}
    places, code = made_places(recipe, root), current_code()
    corpora = _Corpora(with_made(recipe, places), root, places, code, read_tombstones(root))
    with known_under(root):
        for declared in CHAIN.values():
            for partition in partitions_of(declared, corpora.recipe):
                try:
                    cell = corpora.cell(declared, partition, cells)
                except DataError as error:
                    if not skip_unavailable:
                        raise
                    cell = _unavailable(declared, corpora.recipe, partition, (str(error),))
                cells[cell.key] = cell
    return Comparison(recipe=recipe, root=root, cells=cells | dict(_changed(cells, root)))


class _Corpora:
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
        cell = _cell(declared, asked, partition, self._root, cells, self._places, self._code)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeAddress:
    """The path that a name `made://…` in a recipe stands for, and an identity of its content.

    The identity does not depend on the path.
    """

    uri: str
    path: str
    content: str  # made://DIGEST/PATH: the artifact's digest, and the path inside the artifact


def made_places(recipe: Recipe, root: Path) -> tuple[MadeAddress, ...]:
    """Return the path and identity behind every `made://asset/partition/path` in `recipe`.

    Names whose artifact does not exist under `root` are left out.
    """
    return tuple(place for uri in sorted(_made_names(write_record(recipe))) if (place := _place(uri, root)))


def _made_names(value: Any) -> set[str]:
    if isinstance(value, (dict, list)):
        items = value.values() if isinstance(value, dict) else value
        return set().union(*map(_made_names, items))
    return {value} if isinstance(value, str) and value.startswith(MADE) else set()


def _place(uri: str, root: Path) -> MadeAddress | None:
    asset, partition, inside = (*uri.removeprefix(MADE).split("/", 2), "", "")[:3]
    try:
        made = read_reference(root, asset, partition)
    except Damaged:
        return None
    if made is None:
        return None
    path = artifact.folder_of(root, asset, made.fingerprint) / inside
    return MadeAddress(uri=uri, path=str(path), content=f"{MADE}{made.digest}/{inside}")


def with_made(recipe: Recipe, places: Sequence[MadeAddress]) -> Recipe:
    """The recipe with its `made://` names replaced by paths.

    In this way one recipe reads artifacts that another recipe made. Fingerprints use the content's digest, not the
    path, so they change when the other recipe makes the artifact again. A name whose artifact does not exist yet is
    left as it is; the stage that opens it raises the error.
    """
    if not places:
        return recipe
    return read_record(Recipe, replaced(write_record(recipe), {place.uri: place.path for place in places}))


def _unavailable(declared: Asset, recipe: Recipe, partition: str, reasons: tuple[str, ...]) -> Cell:
    return Cell(
        asset=declared.name,
        partition=partition,
        fingerprint="",
        settings={},
        inputs=_keys(declared.inputs, recipe, partition),
        state="unavailable",
        artifact=None,
        is_recorded=False,
        reasons=reasons,
    )


def _keys(items: Iterable[Input], recipe: Recipe, partition: str) -> tuple[tuple[str, str], ...]:
    part = partition.partition("@")[2]
    return tuple((item.asset, key) for item in items for key in input_partitions(item, recipe, part))


def _cell(
    declared: Asset,
    recipe: Recipe,
    partition: str,
    root: Path,
    cells: Mapping[tuple[str, str], Cell],
    places: Sequence[MadeAddress],
    code: Code,
) -> Cell:
    inputs = _keys(declared.inputs, recipe, partition)
    waiting = [asset for asset, key in inputs if cells[asset, key].state == "unavailable"]
    if waiting:
        return _unavailable(declared, recipe, partition, (f"waits for {waiting[0]}",))
    settings = declared.settings(recipe, partition.partition("@")[2])
    plain = {name: write_record(section) for name, section in settings.items()}
    if declared.shows_recipe:
        plain = replaced(plain, {place.path: place.uri for place in places})
    stage = declared.stage
    wanted = artifact.fingerprint(
        stage=stage.name,
        version=stage.version,
        settings=replaced(asked_settings(declared.stage, settings), {place.path: place.content for place in places}),
        libraries=stage.library_versions(),
        inputs=[(asset, cells[asset, key].fingerprint) for asset, key in inputs],
        seed=seed_of(plain),
    )
    try:
        reference, lost = read_reference(root, declared.name, partition), ""
    except Damaged as error:
        reference, lost = None, str(error)
    points_here = reference is not None and reference.fingerprint == wanted
    held = {reference.record_digest} if reference is not None and points_here else set()
    found = look(artifact.folder_of(root, declared.name, wanted), declared.name, held)
    made = found.artifact if _is_usable(found.artifact, inputs, cells) else None
    damage = tuple(line for line in (found.damage, lost) if line)
    state: State = "damaged" if damage else "made" if made else "missing" if reference is None else "outdated"
    reasons = damage
    if state == "outdated" and reference is not None:
        old = look(artifact.folder_of(root, declared.name, reference.fingerprint), declared.name, set())
        reasons = (old.damage or "the recorded artifact is gone",)
        if old.artifact is not None:
            reasons = _reasons(declared, old.artifact.record, plain, inputs, cells)
    return Cell(
        asset=declared.name,
        partition=partition,
        fingerprint=wanted,
        settings=plain,
        inputs=inputs,
        guards=_keys(declared.guards, recipe, partition),
        state=state,
        artifact=made,
        is_recorded=points_here and (made is None or (reference is not None and reference.digest == made.digest)),
        reasons=reasons,
        reference=reference,
        was_there=found.artifact is not None or found.damage != "",
        other_code=made_by.other_parts(made.record, code.digests(*modules_of(stage, plain))) if made else (),
    )


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


def held_digests(comparison: Comparison, cell: Cell) -> tuple[str, ...]:
    """Record digests that still point to this cell's lost or damaged artifact, sorted.

    They come from the cell's reference and from the records of cells made from it. The digests that the artifact itself
    replaced are included.
    """
    own = look(artifact.folder_of(comparison.root, cell.asset, cell.fingerprint), cell.asset, set()).artifact
    found = set(own.record.get("replaces", ())) if own is not None else set()
    if cell.reference and cell.reference.fingerprint == cell.fingerprint:
        found.add(cell.reference.record_digest)
    for other in comparison.cells.values():
        if cell.key in other.waits_for:
            folder = artifact.folder_of(comparison.root, other.asset, other.fingerprint)
            made = look(folder, other.asset, set()).artifact
            items = [*made.record["inputs"], *made.record.get("guards", ())] if made is not None else []
            found |= {item["record_digest"] for item in items if item["fingerprint"] == cell.fingerprint}
    return tuple(sorted(found - {""}))


def mend(cell: Cell, root: Path) -> list[str]:
    """Restore the record and set aside the damaged reference of a cell whose artifact is whole or can be restored.

    Returns one line for each repair.
    """
    assert cell.artifact is not None
    said = []
    if look(cell.artifact.path, cell.asset, {cell.artifact.record_digest}).damage:
        said.append(put_back(cell.artifact))
    try:
        read_reference(root, cell.asset, cell.partition)
    except Damaged:
        damaged = aside(reference_path(root, cell.asset, cell.partition), "damaged")
        said.append(f"its reference is written again; the damaged one is {damaged.name}")
    return said


def seed_of(settings: Mapping[str, Any]) -> int:
    """The `seed` of the first section that has one among a cell's settings; 0 for a stage without randomness."""
    sections = (section for section in settings.values() if isinstance(section, dict))
    return next((section["seed"] for section in sections if "seed" in section), 0)


def _is_usable(
    found: Artifact | None, inputs: tuple[tuple[str, str], ...], cells: Mapping[tuple[str, str], Cell]
) -> bool:
    """Whether the artifact exists and was made from the inputs that exist now."""
    if found is None:
        return False
    recorded = [(item["asset"], item["digest"]) for item in found.record["inputs"]]
    return len(recorded) == len(inputs) and all(
        asset == key[0] and cells[key].is_of(digest) for (asset, digest), key in zip(recorded, inputs, strict=True)
    )


def _reasons(
    declared: Asset,
    record: Mapping[str, Any],
    settings: dict[str, Any],
    inputs: tuple[tuple[str, str], ...],
    cells: Mapping[tuple[str, str], Cell],
) -> tuple[str, ...]:
    """Return how the record of an artifact or a job differs from the recipe, one line for each field."""
    stage = declared.stage
    lines = differences(*as_read(record["settings"], json.loads(json.dumps(settings))))
    lines += differences(record["libraries"], stage.library_versions(), "libraries")
    if record["stage_version"] != stage.version:
        lines.append(f"stage_version: {record['stage_version']} → {stage.version}")
    before = [(item["asset"], item["partition"].partition("@")[2], item["fingerprint"]) for item in record["inputs"]]
    now = [(asset, key.partition("@")[2], cells[asset, key].fingerprint) for asset, key in inputs]
    for asset, snapshot, wanted in now:
        if (asset, snapshot, wanted) not in before:
            lines.append(f"input {asset}{f' of {snapshot}' if snapshot else ''}{INPUT_IS_ANOTHER}")
    for asset, snapshot, _ in before:
        if (asset, snapshot) not in {(name, of) for name, of, _ in now}:
            lines.append(f"input {asset}{f' of {snapshot}' if snapshot else ''} is no longer read")
    lines += () if lines else remade_inputs(record, {key: cells[key].artifact for key in inputs})
    return tuple(lines) or ("its fingerprint is another one, and no field on record says why",)


def as_read(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both settings after parsing and writing every section with the present code.

    The record may lack fields that the present code has, which then have their defaults. So only a person's changes
    remain.
    """
    sections: tuple[dict[str, Any], dict[str, Any]] = ({**old}, {**new})
    for name in old.keys() & new.keys() & _RECORDS.keys():
        try:
            old_section, new_section = (write_record(read_record(_RECORDS[name], one[name])) for one in (old, new))
        except RecipeError:
            continue  # the section has fields that this code does not know: show all differences
        sections[0][name], sections[1][name] = old_section, new_section
    return sections


def recipe_as_read(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that an artifact keeps, after parsing and writing every section with the present code.

    A section with fields that this code does not know stays as it is.
    """
    read = {**data}
    for name, record in SECTIONS.items():
        if name in data:
            with suppress(RecipeError):
                read[name] = write_record(read_record(record, data[name]))
    if "snapshots" in data:
        with suppress(RecipeError):
            read["snapshots"] = [write_record(read_record(SnapshotRecipe, one)) for one in data["snapshots"]]
    return read


def check_begun(cell: Cell, comparison: Comparison) -> None:
    """Raise DataError if running this cell would silently start a training again at step 0.

    That is so if the trained model is damaged and cannot be restored, or if the training has a checkpoint under
    another fingerprint and none under its own: a changed setting or input changes the fingerprint and thus the
    folder, and the new folder has no checkpoint. Only the run that was begun last is considered.
    """
    own = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    is_lost = cell.state == "damaged" and cell.artifact is None and (own / artifact.ARTIFACT_FILE).exists()
    if is_lost and trains(CHAIN[cell.asset]):
        raise DataError(f"{cell.asset} [{cell.partition}] is damaged ({cell.reasons[0]}); {cell.way_out}")
    if cell.state in ("made", "unavailable") or artifact.checkpoint_step(own) is not None:
        return
    folder, record = _last_begun(cell, comparison.root)
    step = artifact.checkpoint_step(folder) if folder else None
    if folder is None or folder == own or step is None or (folder / artifact.ARTIFACT_FILE).exists():
        return
    reasons = "; ".join(_reasons(CHAIN[cell.asset], record, cell.settings, cell.inputs, comparison.cells))
    raise DataError(
        f"{cell.asset} [{cell.partition}]: training stands at step {step} and was begun otherwise ({reasons}); change"
        f" that back to go on from there, or begin at step 0 {BEGINS_ANEW}"
    )


def _last_begun(cell: Cell, root: Path) -> tuple[Path | None, dict[str, Any]]:
    """The folder and content of the newest `job.json` of the cell's asset and partition, whatever its fingerprint.

    (None, {}) if there is no readable one.
    """
    jobs = sorted((root / cell.asset).glob("*/job.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in jobs:
        try:
            job = read_job(path)
        except (OSError, ValueError):
            continue  # damaged, or written by other code: skip it
        if job.partition == cell.partition:
            return path.parent, write_record(job)
    return None, {}


def last_made(cell: Cell, root: Path) -> Artifact | None:
    """The artifact of a cell; for an outdated cell, the artifact that its reference still points to."""
    if cell.artifact is not None or cell.reference is None:
        return cell.artifact
    return look(artifact.folder_of(root, cell.asset, cell.reference.fingerprint), cell.asset, set()).artifact

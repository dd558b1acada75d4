"""Compare records on disk with the record digests that Dagster and MLflow keep from when artifacts were made or used.

A reference is no proof, because a person who changes a record can change the reference beside it too. Dagster's event
log and MLflow are separate stores that do not follow changes of files. They must hold exactly the record's own digest.
The older digests that a record says it replaces (`replaces`) do not count, because a forged record can name any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from assets.registry.decision import DECISION, lineage_of, model_of
from assets.state.cell import Cell, Comparison
from assets.state.tombstones import is_masked
from resources.tracking.errors import TrackingError, reason_of
from resources.tracking.registry import Registry, explained
from resources.tracking.reports import FLUSH_SECONDS, Tracking
from training.contract.artifact import Artifact, problems_of
from training.contract.job import DataError

if TYPE_CHECKING:  # it reads tables
    from training.provenance.lineage import Lineage

RECENT = 200  # how many of the newest materializations are searched for the fingerprint
Said = tuple[Cell, str]


class Held(Protocol):
    """An artifact in its partition, such as a cell."""

    @property
    def asset(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def artifact(self) -> Artifact | None: ...


H = TypeVar("H", bound=Held)


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """An artifact from which a model was made."""

    asset: str
    partition: str
    fingerprint: str
    artifact: Artifact | None


def behind_of(lineage: Lineage) -> list[Behind]:
    """Return the artifacts of a lineage that are there."""
    return [
        Behind(asset=node.item.asset, partition=node.item.partition, fingerprint=name, artifact=node.made)
        for name, node in lineage.nodes.items()
        if node.made is not None
    ]


def check_witnessed(lineage: Lineage, root: Path, tracking: Tracking, *, all_told: bool) -> list[str]:
    """Raise DataError if Dagster, MLflow or a descendant holds another digest of a record behind a model.

    With `all_told`, raise it also if both stores answer and neither was told of an artifact. What a record says that it
    replaces is no evidence. Return a sentence for each store that could not be asked.
    """
    behind = behind_of(lineage)
    told, no_dagster = asked(lambda: told_dagster(root, behind), home_of(root), "Dagster")
    more, no_tracker = asked(lambda: told_tracker(behind, tracking), tracking.store or root, "MLflow")
    alone = unheard(behind, root, tracking) if all_told and not (no_dagster or no_tracker) else []
    for one, sentence in (*told, *more, *unwitnessed(behind, root, tracking), *alone):
        raise DataError(f"{one.asset} [{one.partition}]: {sentence}; nothing is signed, exported or promoted of it")
    return [sentence for sentence in (no_dagster, no_tracker) if sentence]


def unwitnessed(behind: Iterable[H], root: Path, tracking: Tracking) -> list[tuple[H, str]]:
    """Return artifacts whose record has another digest than an artifact that was made from it holds, with a sentence.

    Left out are records that Dagster or MLflow was told of, and those in which a takedown of the root masked texts.
    """
    known, found = {one.fingerprint: one for one in behind}, []
    for reader in known.values():
        record = reader.artifact.record if reader.artifact is not None else {}
        for item in (*record.get("inputs", ()), *record.get("guards", ())):
            one, held = known.get(item["fingerprint"]), item.get("record_digest", "")
            if one is not None and one.artifact is not None and held and not is_witnessed(one, held, root, tracking):
                sentence = (
                    f"{one.artifact.path}: the record has digest {one.artifact.record_digest[:12]}, of which neither"
                    f" Dagster nor MLflow was told, and {reader.asset} [{reader.partition}] was made from {held[:12]}"
                )
                found.append((one, sentence))
    return found


def unheard(behind: Iterable[H], root: Path, tracking: Tracking) -> list[tuple[H, str]]:
    """Return artifacts of which neither Dagster nor MLflow was ever told, with a sentence.

    The list is empty if they were told of none: then the root was copied without its stores, or lost them.
    """
    made = {one.artifact.path: one for one in behind if one.artifact is not None}
    told = _told_in_dagster(made.values(), root)
    told |= _told_in_tracker({name for name, digests in told.items() if not digests}, root, tracking)
    alone = [(one, path) for path, one in made.items() if not told[one.fingerprint]]
    if len(alone) == len(made):
        return []
    sentence = "neither Dagster nor MLflow was ever told of it, although they know others that belong to the same model"
    way_out = "if it is right, remove its reference under refs/ and run the recipe: it is then attested as found"
    return [(one, f"{path}: {sentence}; {way_out}") for one, path in alone]


def only_found(lineage: Lineage, root: Path, tracking: Tracking) -> frozenset[str]:
    """Return the fingerprints behind a model of artifacts that no store was told were made, or begun, under this root.

    A run that reuses such an artifact tells the stores that it is there, and no more. The result is empty if a store
    cannot be asked.
    """
    behind = {name: node for name, node in lineage.nodes.items() if node.made is not None}
    if not (home_of(root).exists() and (tracking.store or root).exists()):
        return frozenset()
    with suppress(TrackingError), explained(tracking):
        with _instance_of(root) as instance:
            left = {
                name
                for name, one in behind.items()
                if not was_made(one.item.asset, name, instance, None)
                and not was_made(one.item.asset, name, instance, [one.item.partition])
            }
        if left - tracking.begun(left):  # MLflow may not have had the latest reports yet
            tracking.flush(FLUSH_SECONDS)
        return frozenset(left - tracking.begun(left))
    return frozenset()


def was_made(asset: str, fingerprint: str, instance: Any, partitions: list[str] | None) -> bool:
    """Whether one of Dagster's newest materializations of an artifact made it, and did not find it made."""
    return any(said.get("reused") is False for said in _materializations(asset, fingerprint, instance, partitions))


def is_witnessed(one: Held, held: str, root: Path, tracking: Tracking) -> bool:
    """Whether somebody else than the record itself says that it stands for the record digest that is `held`.

    That is so if it has this digest, if a takedown of the root masked texts in it since, or if it says that it replaced
    that one and Dagster or MLflow was told of the record as it is.
    """
    assert one.artifact is not None
    if one.artifact.record_digest == held or is_masked(one.artifact, held):
        return True
    return held in one.artifact.claims and _is_confirmed(one, root, tracking)


def _is_confirmed(one: Held, root: Path, tracking: Tracking) -> bool:
    """Whether Dagster or MLflow was told of exactly this record."""
    assert one.artifact is not None
    return one.artifact.record_digest in _told([one], root, tracking)[one.fingerprint]


def _told(behind: Iterable[Held], root: Path, tracking: Tracking) -> dict[str, set[str]]:
    """Return the record digests that Dagster and MLflow hold, by fingerprint."""
    told = _told_in_dagster(behind, root)
    also = _told_in_tracker(told, root, tracking)
    return {name: digests | also[name] for name, digests in told.items()}


def _told_in_dagster(behind: Iterable[Held], root: Path) -> dict[str, set[str]]:
    """Return the record digests that Dagster holds, by fingerprint; none if it does not answer."""
    behind = list(behind)
    told: dict[str, set[str]] = {one.fingerprint: set() for one in behind}
    if home_of(root).exists():
        with suppress(TrackingError), _instance_of(root) as instance:
            for one in behind:
                said = {_last_told(one, instance, None)}
                if one.artifact is None or one.artifact.record_digest not in said:
                    said.add(_last_told(one, instance, [one.partition]))
                told[one.fingerprint] |= said - {""}
    return told


def _told_in_tracker(fingerprints: Iterable[str], root: Path, tracking: Tracking) -> dict[str, set[str]]:
    """Return the record digests that MLflow holds, by fingerprint; none if it does not answer."""
    told: dict[str, set[str]] = {name: set() for name in fingerprints}
    if told and (tracking.store or root).exists():
        with suppress(TrackingError), explained(tracking):
            for name, runs in tracking.told_of(told).items():
                told[name] |= {tags["record_digest"] for tags in runs}
    return told


def doubts(root: Path, behind: Iterable[H], tracking: Tracking) -> list[str]:
    """Return a sentence for each record that is not to be registered or promoted on its own word.

    Dagster, MLflow or a descendant holds another digest of it, or neither store was ever told of it. Raise
    TrackingError if MLflow does not answer.
    """
    behind = list(behind)
    told = told_dagster(root, behind) + told_tracker(behind, tracking)
    told += unwitnessed(behind, root, tracking) + unheard(behind, root, tracking)
    return [sentence for _, sentence in told]


def asked(ask: Callable[[], list[tuple[H, str]]], place: Path, name: str) -> tuple[list[tuple[H, str]], str]:
    """Ask a store for contradictions with `ask`; return them, and a sentence if the store could not be asked, else "".

    `place` is the store's file or folder; if it does not exist, or the store does not answer, there are no
    contradictions. `name` is the store's name in the sentence.
    """
    if not place.exists():
        return [], f"{name} was not asked about these records: there is no {place}"
    try:
        return ask(), ""
    except TrackingError as error:
        return [], f"{name} was not asked about these records: {error}"


# Dagster


def home_of(root: Path) -> Path:
    """The configuration file of a root's Dagster instance; if it does not exist, there is no instance."""
    return root / "dagster" / "dagster.yaml"


@contextmanager
def _instance_of(root: Path) -> Iterator[Any]:
    """Context manager with a root's Dagster instance. Raises TrackingError if its database cannot be opened."""
    import dagster as dg

    try:
        if not home_of(root).is_file():  # Dagster would wait at a pipe
            raise OSError("it is no regular file")
        instance = dg.DagsterInstance.from_config(str(home_of(root).parent))
    except Exception as error:  # whatever Dagster and the database's driver raise
        why = reason_of(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        raise TrackingError(f"Dagster's database in {home_of(root)} could not be opened: {why}") from None
    with instance:
        yield instance


def told_dagster(root: Path, cells: Iterable[H]) -> list[tuple[H, str]]:
    """Return cells whose record on disk has another digest than Dagster stored at their last materialization.

    Empty if the root has no instance. Raises TrackingError if its database cannot be opened.
    """
    home = home_of(root)
    if not home.exists():
        return []
    with _instance_of(root) as instance:
        told = [(cell, told_otherwise(cell, instance)) for cell in cells]
    return [(cell, contradiction(cell.artifact, "Dagster", {other})) for cell, other in told if cell.artifact and other]


def told_otherwise(cell: Held, instance: Any) -> str:
    """Return the record digest that Dagster stored at the cell's last materialization, if it differs from the record's.

    If they are equal, if a takedown masked texts in the record since, or if Dagster stored none, the result is "".
    """
    if cell.artifact is None:
        return ""
    told = _last_told(cell, instance, None) or _last_told(cell, instance, [cell.partition])
    return "" if told == cell.artifact.record_digest or is_masked(cell.artifact, told) else told


def _last_told(cell: Held, instance: Any, partitions: list[str] | None) -> str:
    """Return the record digest that Dagster stored at its newest materialization of the cell's fingerprint.

    The result is "" without one.
    """
    found = _materializations(cell.asset, cell.fingerprint, instance, partitions)
    return next((str(said["record_digest"]) for said in found if said.get("record_digest")), "")


def _materializations(
    asset: str, fingerprint: str, instance: Any, partitions: list[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the metadata of Dagster's materializations of an artifact, newest first.

    Recipes share artifacts, so with `partitions=None` materializations of all partitions are searched. Because only the
    newest RECENT ones are searched, the caller then searches the artifact's own partition.
    """
    import dagster as dg

    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=partitions)
    for record in instance.fetch_materializations(wanted, limit=RECENT).records:
        event = record.asset_materialization
        said = {name: getattr(value, "value", "") for name, value in event.metadata.items()} if event else {}
        if said.get("fingerprint") == fingerprint:
            yield said


# MLflow


def told_tracker(cells: Iterable[H], tracking: Tracking) -> list[tuple[H, str]]:
    """Return the cells whose artifact MLflow knows only with record digests that differ from the one on disk.

    Each comes with a sentence.
    """
    cells = list(cells)
    with explained(tracking):
        found = _told_by_runs(cells, tracking)
        if found:  # MLflow may not have had the latest reports yet, even if none is pending by now
            tracking.flush(FLUSH_SECONDS)
            found = _told_by_runs(cells, tracking)
    return found


def _told_by_runs(cells: list[H], tracking: Tracking) -> list[tuple[H, str]]:
    found = []
    by_fingerprint = tracking.told_of({cell.fingerprint for cell in cells if cell.artifact is not None})
    for cell in cells:
        told = {tags["record_digest"] for tags in by_fingerprint.get(cell.fingerprint, [])}
        made = cell.artifact
        if made is None or not told or made.record_digest in told or any(is_masked(made, one) for one in told):
            continue
        found.append((cell, contradiction(made, "MLflow", told)))
    return found


def told_version(comparison: Comparison, tracking: Tracking) -> list[Said]:
    """Cells whose record contradicts the record digest in the tags of the registered version of the recipe's model.

    The tags describe the latest decision, so they are compared only if that decision is the one under this root.
    """
    decision, model = comparison.cells[DECISION, comparison.recipe.name], model_of(comparison)
    if decision.artifact is None or model.artifact is None:
        return []
    with explained(tracking):
        version = Registry(tracking, comparison.recipe.promote.model_name).version_of(model.artifact.digest)
    if version is None or version.tags.get("decision") != decision.artifact.digest:
        return []
    found = []
    tags = [(decision, "decision_record"), *((cell, f"record_digest.{cell.place}") for cell in lineage_of(comparison))]
    for cell, name in tags:
        told = version.tags.get(name)
        if told and cell.artifact is not None and not is_witnessed(cell, told, comparison.root, tracking):
            found.append((cell, contradiction(cell.artifact, f"version {version.version} in MLflow", {told})))
    return found


def told_loadable(comparison: Comparison, tracking: Tracking, *, mend: bool) -> list[Said]:
    """Problems with the files that MLflow loads for the registered version of the recipe's model.

    With `mend`, these files are written again from the artifact if its own files are whole.
    """
    model = model_of(comparison)
    if model.artifact is None:
        return []
    with explained(tracking):
        registry, export = Registry(tracking, comparison.recipe.promote.model_name), model.artifact.file("model")
        version = registry.version_of(model.artifact.digest)
        problems = registry.unloadable(version, export) if version is not None else []
        if version is not None and problems and mend and not problems_of(model.artifact):
            registry.rewrite(version, export)
    return [(model, line) for line in problems]


def contradiction(made: Artifact, who: str, told: set[str]) -> str:
    """Return a sentence saying that a store holds other record digests than that of the record on disk.

    `who` is Dagster or MLflow, and `told` are the digests that it holds.
    """
    if told & made.claims:
        return (
            f"{made.path}: {who} was told {_some(told)}, which this record {made.record_digest[:12]} says it replaces,"
            " and was not told of this one: a run was killed before it could, or somebody rewrote it"
        )
    return (
        f"{made.path}: the record was changed: what was decided has digest {made.record_digest[:12]}, and {who} was"
        f" told {_some(told)}"
    )


def _some(digests: set[str]) -> str:
    return ", ".join(digest[:12] for digest in sorted(digests))

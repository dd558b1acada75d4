"""`pedigree takedown`: what holds a page, a domain or a document, what a rebuild costs, and its withdrawal."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from assets.answers.takedown.rows import (
    ROW_ID,
    check_text,
    pages_holding,
    rows_named,
    rows_of,
    rows_with,
    text_key,
    twins_of,
)
from assets.answers.trace.kept_step import in_order, last_clean, made_from, told_of_step
from assets.answers.trace.owned_domains import has_owner
from assets.answers.trace.trace import model_of_version, versions_of
from assets.state.cell import Cell, Comparison, last_made
from assets.state.chain import CHAIN, descendants
from assets.state.compare import compare
from assets.state.kept_models import LEARNED
from assets.state.liveness import at_work
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.state.references import read_reference
from assets.state.removal_lock import nobody_looks, only_one
from assets.state.tombstones import (
    FOLDER,
    FOUND,
    LOCK_FILE,
    ROW_ASSETS,
    Entry,
    Tombstone,
    append,
    as_said,
    read_tombstones,
)
from resources.profile import Profile
from resources.tracking.errors import TrackingError
from resources.tracking.registry import Registry, explained
from resources.tracking.reports import Tracking
from resources.tracking.versions import Registered
from training.contract.artifact import folder_of
from training.contract.job import DataError, RefusedInput
from training.contract.records import RecipeError
from training.contract.scopes import AVERAGE, AVERAGED_MODEL, QUANTIZED, QUANTIZED_MODEL, WHOLE
from training.contract.secrets import masked
from training.data.address_lists import AddressList, Target, target_of, target_of_line
from training.data.checksum_cache import known_under
from training.data.crawl.crawl import read_listing
from training.data.extract.collection import OTHERS, SEEDS
from training.data.extract.terms import cells_of
from training.provenance.clusters import Member, cluster_of
from training.provenance.index import Index
from training.provenance.lineage import INDEX, SHARDS, artifacts_under, lineage_of
from training.provenance.rows.build import KEPT as KEPT_ROW
from training.provenance.rows.build import Row
from training.provenance.rows.rows import RowIndex, row_indexes_under
from training.provenance.trace import Tracer
from training.provenance.withdrawal import (
    CRAWL,
    EXTRACTED,
    crawl_of,
    indexes_under,
    pages_of_entry,
    seen_by,
    told_of,
)

CORPUS = tuple(
    asset.name
    for asset in CHAIN.values()
    if asset.name in descendants(CRAWL)
    and (asset.scope == "snapshot" or asset.sections == ("snapshots",))
    and asset.group != "pretraining"
    and not asset.stage.by_a_model
    and not asset.name.endswith("_plan")
)
NOT_ERASED = (
    "Nothing is erased yet: superseded artifacts and the raw records in copied archives hold the text until the command"
    " is given again without --no-rebuild."
)
MOST_BAD_LINES, MOST_EXAMPLES, MOST_IN_TAG = 20, 5, 7
WITHDRAWN_TAG = "upstream_withdrawn"
TRAINED_ON_PAGES = ("base_model", "long_context_model")
MADE_OF_MODELS = {AVERAGED_MODEL: AVERAGE, QUANTIZED_MODEL: QUANTIZED}  # with the part by which commands name them
ROWS = (*ROW_ASSETS, "row_index")
LAST = ("text_index", "provenance_index", "corpus_summary", *ROWS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a person asks to withdraw: pages, each with the reason; all that holds a text; or rows of post-training.

    `rows` are ids, or sources with `#` at the end. `reason` is that of the text and of the rows.
    """

    targets: tuple[Target, ...] = ()
    reasons: tuple[str, ...] = ()
    text: str = ""
    rows: tuple[str, ...] = ()
    reason: str = ""


def asked_of(
    *,
    url: str = "",
    domain: str = "",
    document: str = "",
    file: Path | None = None,
    text: str = "",
    source: str = "",
    reason: str,
) -> Asked:
    """Return what the options ask to withdraw. Raise DataError unless exactly one is given, with a reason.

    `document` is the id of a page or of a row. All bad lines of a list are named.
    """
    given = {"url": url, "domain": domain, "document": document, "text": text, "source": source}
    named = [(kind, value) for kind, value in given.items() if value]
    if len(named) + (file is not None) != 1:
        raise DataError("takedown: give one of --url, --domain, --document, --text, --source and --list")
    if file is not None:
        return _of_list(file, reason)
    ((kind, value),) = named
    if kind == "text":
        check_text(value)
        return Asked(text=value, reason=_reason(reason, "--reason"))
    if kind == "source" or (kind == "document" and ROW_ID.search(value)):
        row = value if kind == "document" else f"{value.removesuffix('#')}#"
        return Asked(rows=(row,), reason=_reason(reason, "--reason"))
    target = target_of(cast(Literal["url", "domain", "document"], kind), value)
    if problem := _problem(target):
        raise DataError(problem)
    return Asked(targets=(target,), reasons=(_reason(reason, "--reason"),))


def _reason(text: str, where: str) -> str:
    plain = " ".join(text.split())
    if not re.search(r"\w", plain):
        raise DataError(f"{where}: give a reason; it stays in the tombstone and is counted with the dropped pages")
    return plain


def _of_list(file: Path, reason: str) -> Asked:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from None
    found: dict[Target, str] = {}
    bad = []
    for number, line in enumerate(lines, 1):
        text, own = cells_of(line)
        if not text:
            continue
        try:
            target = target_of_line(text)
            if problem := _problem(target):
                raise DataError(problem)
            found.setdefault(target, _reason(own or reason, "no reason on the line or by --reason"))
        except DataError as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"\nand {len(bad) - MOST_BAD_LINES} more" if len(bad) > MOST_BAD_LINES else ""
        raise DataError(f"{file}: {len(bad)} bad lines, nothing was done\n" + "\n".join(bad[:MOST_BAD_LINES]) + more)
    if not found:
        raise DataError(f"{file}: names nothing")
    return Asked(targets=tuple(found), reasons=tuple(found.values()))


def _problem(target: Target) -> str:
    if target.kind != "domain" or has_owner(target.value):
        return ""
    return f"{target.value}: is a public suffix, under which names belong to many people; name one of them"


# The answer


@dataclass
class Holding:
    """The pages that one request names in the indexes of all snapshots, and the other pages of their clusters."""

    indexes: list[Index]
    by_target: list[list[np.ndarray]]  # for each target, for each index
    clusters: list[dict[int, Member]]  # for each index
    rows: list[Row] = field(default_factory=list)  # of post-training, in all their artifacts

    def pages(self, number: int, *, cluster: bool) -> np.ndarray:
        """Return all pages of the request in a snapshot."""
        more = np.fromiter(self.clusters[number] if cluster else (), np.int64)
        return np.unique(np.concatenate([*(found[number] for found in self.by_target), more]))


def held(root: Path, asked: Asked) -> tuple[Asked, Holding]:
    """Find what is asked for in all snapshots and rows; return it with what was asked, a text as what holds it.

    Rows with the same texts as a row that is asked for are added, unless a recipe of the root keeps duplicates. Raise
    DataError if a snapshot cannot be searched, or if nothing holds a text or has the name of a row.
    """
    indexes = held_indexes(root)
    known = row_indexes_under(root)
    if asked.text:
        asked = _of_text(root, asked, indexes, known)
    rows = rows_named(known, asked.rows)
    if asked.rows and not asked.targets and not rows:
        raise DataError(f"{asked.rows[0]}: no index of rows under {root} has a row of this id or source")
    if rows and not keeps_duplicates(root):
        twins = dict.fromkeys(row["id"] for row in twins_of(known, rows))
        asked = replace(asked, rows=(*asked.rows, *twins))
        rows = [row | {"is_twin": row["id"] in twins} for row in rows_named(known, asked.rows)]
    by_target = [[pages_of_entry(index, target.entry) for index in indexes] for target in asked.targets]
    named = [
        np.unique(np.concatenate([found[number] for found in by_target])) if by_target else np.empty(0, np.int64)
        for number in range(len(indexes))
    ]
    if [one.kind for one in asked.targets] == ["document"] and not asked.text and not any(map(len, named)):
        raise DataError(f"{asked.targets[0].value}: no snapshot under {root} has a page with this id")
    return asked, Holding(indexes, by_target, cluster_of(indexes, named), rows)


def _of_text(root: Path, asked: Asked, indexes: Sequence[Index], known: Sequence[RowIndex]) -> Asked:
    """Return as pages and rows what holds a text, also what an earlier command that asked for it has withdrawn.

    Raise DataError if nothing does.
    """
    ids = {id_: None for own in pages_holding(indexes, asked.text) for id_ in own}
    rows = {row["id"]: None for row in rows_with(known, asked.text)}
    for one in earlier_answers(root, text_key(asked.text)):
        ids |= dict.fromkeys(each["value"] for each in one["asked"])
        rows |= dict.fromkeys(each["id"] for each in one["asked_rows"])
    if not ids and not rows:
        searched = ", ".join(index.item.partition for index in indexes) or "no snapshot"
        raise DataError(f"no page and no row holds this text, in any case and spacing; searched: {searched}")
    targets = tuple(target_of("document", id_) for id_ in ids)
    return replace(asked, targets=targets, reasons=(asked.reason,) * len(targets), rows=tuple(rows))


def earlier_answers(root: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the answers of earlier takedowns that asked for the same text."""
    for path in sorted((root / FOLDER).glob(f"*.{FOUND}")):
        told = json.loads(path.read_text("utf-8"))
        if told.get("asked_text") == key:
            yield told


def held_indexes(root: Path) -> list[Index]:
    """Return the indexes of all snapshots that partitions point to. Raise DataError if one cannot be used."""
    try:
        return indexes_under(root, _referenced(root, SHARDS))
    except RefusedInput as error:
        raise DataError(str(error)) from None


def keeps_duplicates(root: Path) -> bool:
    """Whether a recipe of the root keeps the near-duplicates of withdrawn pages (`withdrawals.duplicates: twin`)."""
    return any(one.recipe.withdrawals.duplicates == "twin" for one in _recipes(root)[0])


def _referenced(root: Path, asset: str) -> dict[str, str]:
    """Return the artifacts of an asset that partitions point to, each with one of its partitions."""
    found: dict[str, str] = {}
    for path in sorted((root / "refs" / asset).glob("*.json")):
        reference = read_reference(root, asset, path.name.removesuffix(".json"))
        if reference is not None:
            found.setdefault(reference.fingerprint, path.name.removesuffix(".json"))
    return found


def answer(root: Path, asked: Asked, *, tracking: Tracking, profile: Profile) -> dict[str, Any]:
    """Return which artifacts contain the requested pages, and what a rebuild without them costs. Change nothing."""
    with known_under(root):
        asked, found = held(root, asked)
        return _told(root, asked, found, versions_of(tracking), profile)


def _told(root: Path, asked: Asked, found: Holding, versions: Sequence[Registered], profile: Profile) -> dict[str, Any]:
    recipes, problems = _recipes(root)
    keeping = [one.recipe.name for one in recipes if one.recipe.withdrawals.duplicates == "twin"]
    cluster = not recipes or len(keeping) < len(recipes)
    pages = [found.pages(number, cluster=cluster) for number in range(len(found.indexes))]
    snapshots = [told_of(index, own) for index, own in zip(found.indexes, pages, strict=True) if len(own)]
    members = [one for own in found.clusters for one in own.values()]
    also = [one["id"] for one in members]
    crawls = {one["crawl"] for one in snapshots}
    known = {index.item.fingerprint: own for index, own in zip(found.indexes, pages, strict=True)}
    rows = Counter(one["fingerprint"] for one in found.rows if one["outcome"] == KEPT_ROW)
    models = _models(root, asked, also if cluster else [], known, rows, versions)
    touched = [one for one in recipes if _crawls(one) & crawls or _with_rows(one, found.rows)]
    return {
        "asked": [
            {
                "kind": target.kind,
                "value": target.value,
                "entry": target.entry,
                "reason": reason,
                "pages": sum(len(pages) for pages in own),
            }
            for target, reason, own in zip(asked.targets, asked.reasons, found.by_target, strict=True)
        ],
        "asked_text": text_key(asked.text) if asked.text else "",
        "asked_rows": found.rows,
        "row_names": list(asked.rows),
        "pages": sum(one["pages"] for one in snapshots),
        "duplicates": _duplicates(members, keeping, is_withdrawn=cluster),
        "snapshots": snapshots,
        "searched": [index.item.partition for index in found.indexes],
        "not_searched": sorted(_not_searched(root, found.indexes)),
        **_made_from(root, crawls),
        "archives": [archives_of(root, crawl) for crawl in sorted(crawls)],
        **models,
        "learned": [told for one in touched for told in _learned(one, crawls)],
        "seeds": list(_seeds(root, asked.targets)),
        **rows_of(root, found.indexes, pages, asked.targets, found.rows),
        "rebuild": _price(touched, snapshots, found.rows, profile),
        "problems": problems,
    }


def _duplicates(members: Sequence[Member], keeping: Sequence[str], *, is_withdrawn: bool) -> dict[str, Any]:
    """Return what is told of the other pages of clusters: how many, by which duplication, and the first, kept before.

    `keeping` are the recipes that do not withdraw them.
    """
    first = sorted(members, key=lambda one: not one["is_kept"])[:MOST_EXAMPLES]
    return {
        "policy": "cluster" if is_withdrawn else "twin",
        "kept_by": list(keeping),
        "pages": len(members),
        "in_shards": sum(one["is_kept"] for one in members),
        "reasons": dict(sorted(Counter(one["reason"] for one in members if "reason" in one).items())),
        "examples": first,
    }


def _recipes(root: Path) -> tuple[list[Comparison], list[str]]:
    """Return the state of every recipe that has made something under the root, and why others cannot be read."""
    names = {path.name.removesuffix(".json").partition("@")[0] for path in root.glob("refs/*/*.json")}
    found, problems = [], []
    for name in sorted(names):
        try:
            found.append(compare(load_recipe(name, recipe_folders(root)), root, skip_unavailable=True))
        except RecipeError as error:
            problems.append(f"recipe {name} cannot be read, so it will not be rebuilt: {error}")
    return found, problems


def _learned(comparison: Comparison, crawls: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a recipe's vocabulary and quality models that learned from these crawls, and what becomes of them."""
    touched = {
        cell.partition for cell in comparison.cells.values() if cell.asset == CRAWL and cell.fingerprint in crawls
    }
    for cell in comparison.cells.values():
        made = last_made(cell, comparison.root) if cell.asset in LEARNED else None
        if made is not None and (cell.is_kept or touched & {partition for _, partition in cell.inputs}):
            told = {"asset": cell.asset, "partition": cell.partition, "fingerprint": made.fingerprint}
            yield told | {"policy": comparison.recipe.withdrawals.models, "is_kept": cell.is_kept}


def _crawls(comparison: Comparison) -> set[str]:
    return {cell.fingerprint for cell in comparison.cells.values() if cell.asset == CRAWL}


def _not_searched(root: Path, indexes: Iterable[Index]) -> set[str]:
    """Return the partitions whose pages were extracted but are in no index."""
    known = {index.inputs[EXTRACTED].fingerprint for index in indexes}
    return {partition for name, partition in _referenced(root, EXTRACTED).items() if name not in known}


def _made_from(root: Path, crawls: set[str]) -> dict[str, Any]:
    """Return how many artifacts of each asset, models included, were made from these crawls, directly or indirectly.

    `superseded` are artifacts of the corpus to which no partition points any more, but which may still hold the
    text.
    """
    records = [one.record for one in artifacts_under(root)]
    known, grew = set(crawls), True
    while grew:
        before = len(known)
        known |= {one["fingerprint"] for one in records if known & {item["fingerprint"] for item in one["inputs"]}}
        grew = len(known) > before
    made = [one for one in records if one["fingerprint"] in known and one["asset"] != CRAWL]
    counts = {asset: sum(one["asset"] == asset for one in made) for asset in CHAIN}
    used = {asset: _referenced(root, asset) for asset in CORPUS}
    superseded = [
        {"asset": one["asset"], "partition": one["partition"], "fingerprint": one["fingerprint"]}
        for one in made
        if one["fingerprint"] not in used.get(one["asset"], {one["fingerprint"]})
    ]
    named = [{"asset": asset, "artifacts": count} for asset, count in counts.items() if count]
    return {"made_from_them": named, "superseded": superseded}


def _seeds(root: Path, targets: Iterable[Target]) -> Iterator[dict[str, Any]]:
    """Yield the seeds of crawls, in the records of extractions, that one of these addresses or domains names."""
    named = AddressList({one.entry: "" for one in targets if one.kind != "document"})
    for made in artifacts_under(root, lambda asset: asset == EXTRACTED):
        said = made.record["notes"].get("collection", {}).get("said", {}).get(SEEDS, {})
        own = [seed for seed in said if seed and named.find(seed) is not None]
        if own or (OTHERS in said and named.reasons):
            told = {"partition": made.record["partition"], "fingerprint": made.fingerprint, "seeds": own}
            yield told | {"not_noted": said.get(OTHERS, 0)}


def archives_of(root: Path, crawl: str) -> dict[str, Any]:
    """Return where the raw records of a crawl are: copied under the root, or in archives that stay elsewhere."""
    folder = folder_of(root, CRAWL, crawl)
    files = read_listing(folder)["files"] if folder.exists() else []
    elsewhere = [one["uri"] for one in files if "uri" in one]
    return {
        "crawl": crawl,
        "folder": str(folder),
        "copied": len(files) - len(elsewhere),
        "referenced": len(elsewhere),
        "examples": [masked(uri) for uri in elsewhere[:MOST_EXAMPLES]],
    }


# Models


def _models(
    root: Path,
    asked: Asked,
    also: Sequence[str],
    known: Mapping[str, np.ndarray],
    rows: Mapping[str, int],
    versions: Sequence[Registered],
) -> dict[str, Any]:
    """Return how many of the pages asked for each training and each registered version saw, with what was not told.

    `known` is what `seen_by` takes. `rows` are the numbers of withdrawn rows by the fingerprints of the data made of
    them.
    """
    trainings: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    by_model: dict[str, list[dict[str, Any]] | str] = {}
    rows_in: dict[str, int] = {}
    kept: list[dict[str, Any]] = []
    made_of: list[str] = []

    def seen(made: Any) -> list[dict[str, Any]] | str:
        if made.fingerprint not in by_model:
            try:
                tracer = Tracer(lineage_of(root, made))
                own = seen_by(tracer, asked.targets, also, known)
                rows_in[made.fingerprint] = sum(rows.get(name, 0) for name in made_from(tracer.lineage))
                by_model[made.fingerprint] = [
                    {"fingerprint": training.node.item.fingerprint, **told}
                    for training, told in zip(tracer.trainings, own, strict=True)
                ]
            except (DataError, RefusedInput) as error:
                by_model[made.fingerprint] = str(error)
        return by_model[made.fingerprint]

    # A kept step of a training on rows had read what the model with which that began had, and withdrawn rows.
    named = (*TRAINED_ON_PAGES, *WHOLE, *MADE_OF_MODELS)
    for made in artifacts_under(root, lambda asset: asset in named, problems.append):
        own = seen(made)
        if isinstance(own, str):
            problems.append(own)
            continue
        trainings |= {one["fingerprint"]: one for one in own}
        asset, read = made.record["asset"], any(one["trained"] for one in own) or rows_in[made.fingerprint] > 0
        if asset in WHOLE:
            kept.append(told_of_step(made, read=read))
        elif asset in MADE_OF_MODELS and read:
            made_of.append(f"{made.record['partition']}@{MADE_OF_MODELS[asset]}")
    told = []
    for version in versions:
        entry: dict[str, Any] = {"name": version.name, "version": version.version, "aliases": list(version.aliases)}
        try:
            made = model_of_version(version, root).made[0]
            own, entry["rows"] = seen(made), rows_in.get(made.fingerprint)
        except DataError as error:
            own, entry["rows"] = str(error), None
        if isinstance(own, str):
            told.append(entry | {"documents": None, "times": None, "tokens": None, "problem": own})
        else:
            sums = {name: sum(one[name] for one in own) for name in ("times", "tokens")}
            told.append(entry | {"documents": max((one["trained"] for one in own), default=0), **sums, "problem": ""})
    of_steps = {"kept_steps": in_order(kept), "last_clean": last_clean(kept), "made_of_models": sorted(made_of)}
    return {"trainings": list(trainings.values()), "versions": told, "not_traced": problems, **of_steps}


# The price


def _with_rows(comparison: Comparison, rows: Sequence[Row]) -> set[tuple[str, str]]:
    """Return the cells of a recipe whose last artifacts hold some of these rows."""
    names = {one["fingerprint"] for one in rows}
    own = [cell for cell in comparison.cells.values() if cell.asset in ROW_ASSETS]
    return {
        (cell.asset, cell.partition)
        for cell in own
        if (made := last_made(cell, comparison.root)) is not None and made.fingerprint in names
    }


def _price(
    touched: Sequence[Comparison], snapshots: Sequence[Mapping[str, Any]], rows: Sequence[Row], profile: Profile
) -> dict[str, Any]:
    """Return what a rebuild without these pages and rows costs: of corpus and rows, and of what is made of them.

    The costs are those of the artifacts made before. For a stage in ranks, each rank that contains a page costs its
    share of the earlier artifact; any other stage is made again as a whole.
    """
    ranks = {one["crawl"]: one["ranks"] for one in snapshots}
    of = {one["crawl"]: one["artifacts"][0]["of"] for one in snapshots}
    corpus: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}
    for comparison in touched:
        crawls = {cell.partition: cell.fingerprint for cell in comparison.cells.values() if cell.asset == CRAWL}
        for cell in _made_again(comparison, set(ranks), _with_rows(comparison, rows)):
            made = last_made(cell, comparison.root)
            if made is None:
                continue
            crawl, part = crawls.get(cell.partition, ""), corpus if cell.asset in (*CORPUS, *ROWS) else models
            if made.fingerprint not in part:
                part[made.fingerprint] = _cost(cell.asset, made.record, ranks.get(crawl, 0), of.get(crawl, 0), profile)
    return {
        "recipes": [one.recipe.name for one in touched],
        **_sums(list(corpus.values())),
        "models": _sums(list(models.values())),
    }


def _made_again(comparison: Comparison, crawls: Set[str], rows: Set[tuple[str, str]]) -> Iterator[Cell]:
    """Yield the cells of a recipe that depend on these crawls or are `rows`, in order, but no model that is kept."""
    changed = {key for key, cell in comparison.cells.items() if cell.asset == CRAWL and cell.fingerprint in crawls}
    for key, cell in comparison.cells.items():
        is_kept = cell.asset in LEARNED and comparison.recipe.withdrawals.models == "keep" and cell.state == "made"
        if not is_kept and cell.asset != CRAWL and (key in rows or changed & set(cell.inputs)):
            changed.add(key)
            yield cell


def _sums(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(one[name] or 0.0 for one in rows) for name in ("seconds", "node_hours", "price")}
    return {
        "assets": list(rows),
        **{name: round(value, 6) for name, value in sums.items()},
        "least": any(one["least"] for one in rows),
        "has_price": any(one["has_price"] for one in rows),
        "not_priced": sorted({one["asset"] for one in rows if one["node_hours"] is None}),
    }


def _cost(asset: str, record: Mapping[str, Any], ranks: int, of: int, profile: Profile) -> dict[str, Any]:
    """Return the seconds, node-hours and price of one asset; node-hours are None if the record has none."""
    in_ranks = CHAIN[asset].stage.in_ranks and CHAIN[asset].scope == "snapshot"
    made = of - record.get("reused_ranks", {}).get("ranks", 0)
    share = min(1.0, ranks / made) if in_ranks and made > 0 else 1.0
    node_hours = record["cost"].get("node_hours")
    price_per_hour = profile.size_for(asset).price_per_hour
    return {
        "asset": asset,
        "partition": record["partition"],
        "ranks": ranks if in_ranks else None,
        "of": of if in_ranks else None,
        "seconds": round(record["cost"].get("elapsed_seconds", record["seconds"]) * share, 3),
        "node_hours": None if node_hours is None else round(node_hours * share, 6),
        "price": round((node_hours or 0.0) * share * (price_per_hour or 0.0), 6),
        "least": bool(record["cost"].get("least")),
        "has_price": bool(price_per_hour),
    }


# The withdrawal


def withdraw(
    root: Path,
    asked: Asked,
    *,
    tracking: Tracking,
    profile: Profile,
    confirm: Callable[[dict[str, Any]], bool],
    keep: Callable[[dict[str, Any], Sequence[Tombstone]], None] = lambda told, new: None,
) -> dict[str, Any]:
    """Write tombstones for the request, after `confirm` has seen the answer, and tag the versions that saw the pages.

    `keep` gets the answer just before the tombstones are written; afterwards the pages are found no more.
    Return the answer and what was done. If the same was withdrawn before and nothing new is found, no line is added,
    and only what a killed command left undone is done. Raise DataError if a run is writing under the root, before
    anything is changed.
    """
    with only_one(root, LOCK_FILE, "takedown"), known_under(root):
        before = read_tombstones(root)
        asked, found = held(root, asked)
        told = _told(root, asked, found, versions_of(tracking), profile)
        new = tombstones_of(asked, found, len(before))
        is_known = _places(new) <= _places(before)
        if not is_known:
            if not confirm(told):
                return told | {"done": "", "tombstones": [], "tagged": []}
            with nobody_looks(root):  # a run that has compared holds a lease or a job by now; a later one honours this
                check_nobody_writes(root, profile)
                keep(told, new)
                append(root, *new)
        entries = {target.entry for target in asked.targets} | set(asked.rows)
        stones = [one for one in (before if is_known else new) if entries & {*as_said(one)["entries"]}]
        return told | {
            "done": "was withdrawn before" if is_known else "withdrawn",
            "tombstones": [as_said(one) for one in stones],
            "tagged": tag_versions(told, stones, tracking),
        }


def _places(stones: Iterable[Tombstone]) -> set[tuple[str, str]]:
    """Return the entries of tombstones with the crawls that were searched for them; "" stands for later crawls."""
    rows = {(row, "") for one in stones for row in one.rows}
    return rows | {(entry.entry, crawl) for one in stones for entry in one.entries for crawl in ("", *one.looked_at)}


def tag_versions(told: Mapping[str, Any], stones: Sequence[Tombstone], tracking: Tracking) -> list[str]:
    """Tag each registered version that was trained on withdrawn pages or rows; return these as `name/version`.

    The tag lists the takedowns.
    """
    tagged = []
    for version in told["versions"]:
        if version["documents"] or version["rows"]:
            registry = Registry(tracking, version["name"])
            with explained(tracking):
                present = json.loads(registry.version(version["version"]).tags.get(WITHDRAWN_TAG, "[]"))
                kept = [one for one in present if one["takedown"] not in {stone.number for stone in stones}]
                added = [_tag_of(stone) for stone in stones]
                whole = sorted([*kept, *added], key=lambda one: one["takedown"])[-MOST_IN_TAG:]
                registry.tag(version["version"], WITHDRAWN_TAG, json.dumps(whole, ensure_ascii=False))
            tagged.append(f"{version['name']}/{version['version']}")
    return tagged


def with_tags(found: list[dict[str, Any]], numbers: Set[int], tracking: Tracking) -> list[dict[str, Any]]:
    """Return answers in which each registered version says whether its tag lists a takedown with one of the numbers.

    It is None if MLflow does not answer, or no longer has the version.
    """
    for version in (one for told in found for one in told["versions"]):
        version["tagged"] = None
        with suppress(TrackingError), explained(tracking):
            said = Registry(tracking, version["name"]).version(version["version"]).tags.get(WITHDRAWN_TAG, "[]")
            version["tagged"] = any(one["takedown"] in numbers for one in json.loads(said))
    return found


def _tag_of(stone: Tombstone) -> dict[str, Any]:
    entries = [one[:100] for one in as_said(stone)["entries"]]
    said = {"takedown": stone.number, "time": stone.time, "reason": stone.reason[:100]}
    return said | {"entries": entries[:MOST_EXAMPLES], "of": len(entries)}


def to_rebuild(root: Path, recipe: str) -> list[str]:
    """Return the last assets of a recipe's corpus and rows that it has made before and now has to make again."""
    comparison = compare(load_recipe(recipe, recipe_folders(root)), root, skip_unavailable=True)
    has_made = [asset for asset in LAST if any((root / "refs" / asset).glob(f"{recipe}*.json"))]
    return [asset for asset in has_made if comparison.to_do(asset)]


def half_rebuilt(root: Path) -> list[str]:
    """Return the recipes whose rebuild after a takedown was killed between new shards and their provenance index.

    Their pages cannot be searched before the rebuild has gone on.
    """
    if not read_tombstones(root):
        return []
    return [
        one.recipe.name
        for one in _recipes(root)[0]
        if any(
            cell.asset == SHARDS and cell.state == "made" and one.cells[INDEX, cell.partition].state == "outdated"
            for cell in one.cells.values()
        )
    ]


def corpora_of(root: Path, crawls: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the artifacts of the corpus that recipes with these crawls have now, with their reused ranks."""
    wanted, found = set(crawls), {}
    for comparison in _recipes(root)[0]:
        if _crawls(comparison) & wanted:
            cells = [one for one in comparison.cells.values() if one.asset in CORPUS and one.artifact is not None]
            found[comparison.recipe.name] = [
                {
                    "asset": cell.asset,
                    "partition": cell.partition,
                    "state": cell.state,
                    "fingerprint": cell.fingerprint,
                    "digest": cell.artifact.digest,
                    "reused_ranks": cell.artifact.record.get("reused_ranks", {}),
                }
                for cell in cells
                if cell.artifact is not None
            ]
    return found


def check_nobody_writes(root: Path, profile: Profile) -> None:
    """Raise DataError if a job makes an artifact under the root or waits in a queue, or if a run waits for a job."""
    folders = [path for asset in CHAIN for path in sorted((root / asset).glob("*")) if path.is_dir()]
    if busy := [f"{path.parent.name}/{path.name}" for path in folders if at_work(path, profile)]:
        others = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
        raise DataError(
            f"{busy[0]}{others}: made by a run at present; nothing was withdrawn. Wait for its end, or end it, and give"
            " the command again"
        )


def tombstones_of(asked: Asked, found: Holding, number: int) -> list[Tombstone]:
    """Return the tombstones of a request, one for each reason, numbered after the `number` existing ones.

    The first one has the other pages of clusters, and the rows.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    crawls = list(dict.fromkeys(crawl_of(index) for index in found.indexes))

    def touched(pages: Sequence[np.ndarray]) -> tuple[int, ...]:
        own = {crawl_of(index) for index, some in zip(found.indexes, pages, strict=True) if len(some)}
        return tuple(place for place, crawl in enumerate(crawls) if crawl in own)

    by_reason: dict[str, list[Entry]] = {asked.reason: []} if asked.rows else {}
    for target, reason, pages in zip(asked.targets, asked.reasons, found.by_target, strict=True):
        by_reason.setdefault(reason, []).append(Entry(entry=target.entry, touches=touched(pages)))
    named = {entry.entry for own in by_reason.values() for entry in own}
    for index, cluster in zip(found.indexes, found.clusters, strict=True):
        place = crawls.index(crawl_of(index))
        ids = [one["id"] for one in cluster.values() if one["id"] not in named]
        named |= set(ids)
        first = next(iter(by_reason.values()))
        first += [Entry(entry=id_, touches=(place,), cluster=True) for id_ in ids]
    stones = [
        Tombstone(number=number + place, time=time, reason=reason, entries=tuple(entries), looked_at=tuple(crawls))
        for place, (reason, entries) in enumerate(by_reason.items(), 1)
    ]
    return [replace(stones[0], rows=asked.rows), *stones[1:]]

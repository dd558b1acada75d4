"""`pedigree trace`: find the model that is meant, let `training.provenance` answer, and name the versions concerned."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.answers.trace.kept_step import kept_step, last_clean, steps_that_read
from assets.answers.trace.lines import lines_of
from assets.answers.trace.owned_domains import has_owner
from assets.registry.names import VERSION, not_registered
from assets.services.signals import ends_with_this
from assets.state.cell import Comparison, last_made
from assets.state.chain import CHAIN, GROUPS
from assets.state.compare import compare
from assets.state.recipe_folders import find_recipe, load_recipe, recipe_folders
from assets.terminal.harmless import harmless
from resources.tracking.errors import TrackingError
from resources.tracking.reports import Tracking
from resources.tracking.versions import Registered, registered_versions
from training.contract.artifact import Artifact
from training.contract.files.stored_root import bring_records
from training.contract.job import DataError, RefusedInput
from training.contract.records import RecipeError
from training.contract.scopes import AVERAGED_MODEL, CHOSEN_MODEL, QUANTIZED_MODEL, WHOLE, kept_in_words, last_model
from training.data.address_lists import DOCUMENT_ID, target_of
from training.data.checksum_cache import known_under
from training.posttrain.rows.sorting import HELD_OUT_FILE
from training.provenance.lineage import Lineage, Node, artifacts_under, averaged_before, lineage_of
from training.provenance.rows.build import KEPT as KEPT_ROW
from training.provenance.rows.rows import row_indexes_of
from training.provenance.text.asked import LEAST_TOKENS, trace_text
from training.provenance.trace import Tracer

ARTIFACT = re.compile(r"(?P<asset>[a-z_]+)/(?P<fingerprint>[0-9a-f]{6,32})")
TRAINED = ("aligned_model", "sft_model", "long_context_model", "base_model")
MODELS = (*TRAINED, *WHOLE, AVERAGED_MODEL, CHOSEN_MODEL, "adopted_model", QUANTIZED_MODEL)
TENANTS = 3  # names below a public suffix that a refusal mentions
LINEAGE, STEP, URL, DOMAIN, DOCUMENT, TEXT = "lineage", "step", "url", "domain", "document", "text"

Ask = Callable[[Tracer], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The model that the argument MODEL names.

    The record has a sentence about the model, and its artifacts, the last of the chain first.
    """

    title: str
    made: tuple[Artifact, ...]


def answer(
    model: str,
    asked: dict[str, Any],
    *,
    root: Path,
    tracking: Tracking,
    training: str = "",
    texts: bool = False,
    shown: int = 10,
    least: int = LEAST_TOKENS,
) -> dict[str, Any]:
    """Return the answer to one question about a model. `asked` has one entry: the question's name and its value.

    Raise DataError with a sentence if the question cannot be answered: because a model, version, step, page or domain
    does not exist, an artifact is gone, or an index is damaged or was made from other shards.
    """
    ((question, value),) = asked.items()
    with known_under(root):
        try:
            versions = versions_of(tracking)
            chosen = meant(model, root, versions)
            lineage = lineage_of(root, *chosen.made)
            tracer = Tracer(lineage)
            if question == LINEAGE:
                told = _lineage(lineage, model, versions) | _rows_by_source(lineage)
            elif question == STEP:
                told = tracer.step(value, training=training, texts=texts)
            elif question == TEXT:
                told = trace_text(tracer, value, least=least, shown=shown) | _rows_repeating(lineage, value, shown)
            elif question == DOCUMENT and (rows := _rows_with_id(lineage, value)):
                told = {"document": value, "rows": rows, "pages": [], "versions": [], "kept_steps": []}
            else:
                ask = _question(question, value, shown)
                if question == DOMAIN:
                    _check_domain(value, tracer)
                told = ask(tracer)
                told["versions"] = _seen_by(versions, root, lineage, told, ask)
                told["kept_steps"] = steps_that_read(root, lineage, ask)
                told["last_clean"] = last_clean(told["kept_steps"])
        except RefusedInput as error:
            raise DataError(str(error)) from None
    return {"model": chosen.title, "question": question, **told}


def traced_answers(command: Sequence[str], model: str, *, root: Path, tracking: Tracking, json_: bool) -> int:
    """Run a chat, and print after each answer which parts of it occur in the training data of `model`.

    `command` is that of `training.posttrain.chat`. Return its exit code.
    """
    argv = [*command, "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=ends_with_this()) as chat:
        for line in chat.stdout or ():
            said = json.loads(line)
            told = answer(model, {TEXT: said["answer"]}, root=root, tracking=tracking, shown=1)
            print(
                json.dumps({**said, "trace": told}, ensure_ascii=False)
                if json_
                else harmless("\n".join([said["answer"], "", *lines_of(told), ""])),
                flush=True,
            )
    return chat.returncode


def _question(question: str, value: str, shown: int) -> Ask:
    if question == URL:
        return lambda tracer: tracer.url(value)
    if question == DOCUMENT:
        return lambda tracer: tracer.document(value)
    return lambda tracer: tracer.domain(value, shown=shown)


def versions_of(tracking: Tracking) -> list[Registered]:
    try:
        return registered_versions(tracking)
    except TrackingError as error:
        raise DataError(str(error)) from None


# MODEL


def meant(model: str, root: Path, versions: Sequence[Registered]) -> Model:
    """Return the model that a person named.

    The name is an artifact, RECIPE@step-N, NAME@ALIAS, NAME/VERSION, a recipe, or a registered name.
    """
    bring_records(root)
    if (found := ARTIFACT.fullmatch(model)) and found["asset"] in CHAIN:
        return _artifact(found["asset"], found["fingerprint"], root)
    if (kept := kept_step(model, root)) is not None:
        return Model(title=model, made=(kept,))
    if found := VERSION.fullmatch(model):
        return _version(found["name"], found["alias"] or "", found["version"] or "", root, versions)
    folders = recipe_folders(root)
    try:
        find_recipe(model, folders)
    except RecipeError as error:
        own = [one for one in versions if one.name == model]
        if not own:
            raise DataError(f"{not_registered(model, model, versions)}; and {error}") from None
        return model_of_version(next((one for one in own if "champion" in one.aliases), own[-1]), root)
    return _of_recipe(compare(load_recipe(model, folders), root, skip_unavailable=True), model, versions)


def _artifact(asset: str, fingerprint: str, root: Path) -> Model:
    found = [
        one for one in artifacts_under(root, lambda name: name == asset) if one.fingerprint.startswith(fingerprint)
    ]
    if len(found) != 1:
        raise DataError(
            f"{asset}/{fingerprint}: {len(found)} artifacts under {root} have this fingerprint; one is needed"
        )
    return Model(title=f"{asset} {found[0].fingerprint[:12]}", made=(found[0],))


def _version(name: str, alias: str, number: str, root: Path, versions: Sequence[Registered]) -> Model:
    for one in versions:
        if one.name == name and (one.version == number or alias in one.aliases):
            return model_of_version(one, root)
    raise DataError(not_registered(f"{name}{f'@{alias}' if alias else f'/{number}'}", name, versions))


def model_of_version(version: Registered, root: Path) -> Model:
    for made in artifacts_under(root, lambda asset: asset in MODELS):
        tagged = version.tags.get("record_digest", "")
        if made.digest == version.tags.get("digest") and (not tagged or tagged in made.claims):
            own_word = made.own_word_on(tagged) if tagged else ""
            return Model(title="; ".join(filter(None, (f"{version.title}: {_named(made)}", own_word))), made=(made,))
    raise DataError(
        f"{version.title}: its model (digest {version.tags.get('digest', '')[:12] or 'unknown'}) is not under {root};"
        " it was removed, or made under another root"
    )


def _of_recipe(comparison: Comparison, asked: str, versions: Sequence[Registered]) -> Model:
    """Return the last model that a recipe has made or, without one, its plans and shards."""
    recipe = comparison.recipe
    for name in (last_model(recipe), *MODELS):
        cell = comparison.cells.get((name, recipe.name))
        made = last_made(cell, comparison.root) if cell is not None else None
        if made is not None:
            own = [one.title for one in versions if one.tags.get("digest") == made.digest]
            return Model(title=f"recipe {recipe.name}: {', '.join([_named(made), *own])}", made=(made,))
    shards = [cell.artifact for cell in comparison.cells.values() if cell.asset == "token_shards" and cell.artifact]
    if not shards:
        raise DataError(
            f"recipe {recipe.name} has made no model and no shards under {comparison.root}; `pedigree run {asked}`"
            " makes them"
        )
    return Model(title=f"recipe {recipe.name}: no model yet, {len(shards)} snapshots in shards", made=tuple(shards))


def _named(made: Artifact) -> str:
    return f"{made.record['asset']} {made.fingerprint[:12]}"


# Rows of post-training


def _rows_by_source(lineage: Lineage) -> dict[str, Any]:
    """Return the rows that a model was made from by source and generator, or why they are not known."""
    try:
        indexes = row_indexes_of(lineage)
    except DataError as error:
        return {"rows": [], "rows_not_known": str(error)}
    return {"rows": [one for index in indexes for one in index.counts()], "rows_not_known": ""}


def _rows_repeating(lineage: Lineage, text: str, shown: int) -> dict[str, Any]:
    """Return the rows that share a run of eight words with a text, the first of them, or why they are not known."""
    try:
        found = [row for index in row_indexes_of(lineage) for row in index.repeating([text])]
    except DataError as error:
        return {"rows": [], "num_rows": None, "rows_not_known": str(error)}
    return {"rows": found[:shown], "num_rows": len(found), "rows_not_known": ""}


def _rows_with_id(lineage: Lineage, id_: str) -> list[dict[str, Any]]:
    """Return the rows with an id, each with the models that were trained on its data; empty for the id of a page."""
    if DOCUMENT_ID.fullmatch(id_):
        return []
    rows = [row for index in row_indexes_of(lineage) for row in index.with_id(id_)]
    return [{**row, "models": models_of(lineage, row)} for row in rows]


def models_of(lineage: Lineage, row: Mapping[str, Any]) -> list[str]:
    """Return the models of a lineage that were trained on a row: those that read its data, if the row was kept.

    Of a kept step nobody knows whether its training had come to the row.
    """
    if row["outcome"] != KEPT_ROW or row["file"] == HELD_OUT_FILE:
        return []
    data = {node.item.fingerprint for node in lineage.of(row["asset"])}
    readers = [node for node in lineage.nodes.values() if data & set(node.inputs)]
    models = [node for node in readers if node.item.asset.endswith("_model") or node.item.asset in WHOLE]
    return [f"{node.item.asset} {node.item.fingerprint[:12]}{_as_kept(node)}" for node in models]


def _as_kept(node: Node) -> str:
    kept = kept_in_words(node.made.record["settings"]) if node.made is not None else ""
    return f" (kept after {kept}, which may be before the row)" if kept else ""


# Domains


def _check_domain(domain: str, tracer: Tracer) -> None:
    """Raise DataError for a text that is not a domain, and for one without an owner, below which are many people's."""
    asked = target_of("domain", domain).value
    if has_owner(asked):
        return
    try:
        below = [one["host"] for one in tracer.domain(asked, shown=TENANTS)["hosts"] if one["host"] != asked]
    except DataError:
        below = []
    there = f", such as {' or '.join(below)}" if below else ""
    raise DataError(f"{asked}: is a public suffix, under which names belong to many people; ask for one of them{there}")


# Versions


def _seen_by(
    versions: Sequence[Registered], root: Path, lineage: Lineage, told: dict[str, Any], ask: Ask
) -> list[dict[str, Any]]:
    """Return, for every registered version, how many of an answer's pages its trainings saw, and how often.

    A version of the same trainings has the answer's own counts; for others the question is asked again.
    """
    models, earlier = (one.item for one in lineage.nodes.values()), averaged_before(lineage)
    trained = {one.digest for one in models if one.asset in MODELS and one.fingerprint not in earlier}
    asked: dict[str, dict[str, Any]] = {}
    found = []
    for version in versions:
        own = version.tags.get("digest", "")  # of a chosen model: which step of the base model it is, no tag says
        base = own if "chosen_on" in version.tags else version.tags.get("digest.base_model") or own
        if base not in asked:
            asked[base] = _counts(told) if base in trained else _asked_again(version, root, ask)
        found.append(
            {"name": version.name, "version": version.version, "aliases": list(version.aliases), **asked[base]}
        )
    return found


def _asked_again(version: Registered, root: Path, ask: Ask) -> dict[str, Any]:
    try:
        tracer = Tracer(lineage_of(root, *model_of_version(version, root).made))
        tracer.trainings, tracer.indexes  # noqa: B018 - what is gone is said, and no page is something else
    except (DataError, RefusedInput) as error:
        return {"documents": None, "times": None, "tokens": None, "problem": str(error)}
    try:
        return _counts(ask(tracer))
    except DataError:  # its snapshots have no such page
        return {"documents": 0, "times": 0, "tokens": 0, "duplicates": 0, "problem": ""}


def _counts(told: dict[str, Any]) -> dict[str, Any]:
    """Return how many of an answer's pages were trained on, how often, and their number of tokens.

    `duplicates` is how often other pages of their clusters were seen; it is counted for single pages only.
    """
    duplicates = 0
    if "num_pages" in told:
        documents = max((one["trained"] for one in told["seen"]), default=0)
        seen = told["seen"]
    else:
        documents = sum(any(one["times"] for one in page["seen"]) for page in told["pages"])
        seen = [one for page in told["pages"] for one in page["seen"]]
        # The clusters of several pages may be one: the largest is a number that was reached.
        duplicates = max((sum(one["times"] for one in page["cluster"]["seen"]) for page in told["pages"]), default=0)
    sums = {name: sum(one[name] for one in seen) for name in ("times", "tokens")}
    return {"documents": documents, **sums, "duplicates": duplicates, "problem": ""}


# Lineage


def _lineage(lineage: Lineage, model: str, versions: Sequence[Registered]) -> dict[str, Any]:
    """Return everything that an artifact was made from, and the artifacts and versions that were made from it."""
    last = lineage.last.item
    nodes = {name: _node(lineage, name) for name in lineage.nodes}
    made_from: list[dict[str, str]] = []
    known = {last.fingerprint}
    records = sorted(artifacts_under(lineage.root), key=lambda one: GROUPS.index(CHAIN[one.record["asset"]].group))
    grew = True
    while grew:
        grew = False
        for one in records:
            named = {entry["fingerprint"] for entry in one.record["inputs"]}
            if one.fingerprint not in known and named & known:
                known.add(one.fingerprint)
                made_from.append(
                    {"asset": one.record["asset"], "partition": one.record["partition"], "fingerprint": one.fingerprint}
                )
                grew = True
    return {
        "artifact": last.fingerprint,
        "nodes": nodes,
        "made_from_it": made_from,
        "versions": [
            {"name": one.name, "version": one.version, "aliases": list(one.aliases)}
            for one in versions
            if _is_made_from(one, last.digest)
        ],
        "price": _price(nodes.values()),
    }


def _is_made_from(version: Registered, digest: str) -> bool:
    return any(
        value == digest for name, value in version.tags.items() if name == "digest" or name.startswith("digest.")
    )


def _node(lineage: Lineage, fingerprint: str) -> dict[str, Any]:
    node = lineage.nodes[fingerprint]
    record = node.made.record if node.made else {}
    return {
        "asset": node.item.asset,
        "partition": node.item.partition,
        "fingerprint": fingerprint,
        "digest": node.item.digest,
        "problem": node.problem,
        "remark": node.remark,
        "inputs": list(node.inputs),
        "guards": list(node.guards),
        "recipe": record.get("recipe", ""),
        "sections": sorted(record.get("settings", {})),
        "stage_version": record.get("stage_version", ""),
        "code_revision": record.get("code_revision", ""),
        "code": record.get("code", {}).get("digest", ""),
        "libraries": record.get("libraries", {}),
        "cost": record.get("cost", {}),
    }


def _price(nodes: Any) -> dict[str, float]:
    """Return the sums of the costs in the records of a lineage; `least` attempts took longer than anybody saw."""
    sums: dict[str, float] = {}
    for node in nodes:
        for name in ("cpu_seconds", "node_hours", "price", "least"):
            if name in node["cost"]:
                sums[name] = round(sums.get(name, 0.0) + node["cost"][name], 6)
    return sums

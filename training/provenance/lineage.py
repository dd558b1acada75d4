"""Follow the records under a root from an artifact to everything that it was made from, up to the crawl.

A record names its inputs by fingerprint and digest. An artifact that was removed or made anew since is part of the
lineage nevertheless, with a sentence that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from training.contract import artifact
from training.contract.artifact import Artifact, Damaged
from training.contract.job import DataError, InputArtifact
from training.contract.scopes import AVERAGED_MODEL, CHOSEN_MODEL, KEPT_ON_PAGES
from training.order.batches import PLAN_FILE, Plan, read_plan
from training.order.later_steps import ledger_before
from training.order.ledger import LEDGER_FILE, Ledger, read_ledger
from training.provenance.file_verification import sound
from training.provenance.index import Index, check_index
from training.provenance.layout import FILES

INDEX = "provenance_index"
SHARDS = "token_shards"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """An artifact of a lineage.

    `made` is None if the artifact does not exist any more; `problem` says why it cannot be used. `remark` says if it is
    the artifact only by its record's own word.
    """

    item: InputArtifact
    made: Artifact | None
    problem: str = ""
    inputs: tuple[str, ...] = ()  # fingerprints
    guards: tuple[str, ...] = ()
    remark: str = ""

    @property
    def usable(self) -> InputArtifact:
        """The artifact, if it still exists unchanged. Raises DataError otherwise."""
        if self.problem:
            raise DataError(self.problem)
        return self.item


@dataclass(frozen=True, slots=True)
class Lineage:
    """Everything that an artifact was made from: nodes by fingerprint, the artifact itself first."""

    root: Path
    nodes: Mapping[str, Node]

    @property
    def last(self) -> Node:
        """The artifact whose lineage this is."""
        return next(iter(self.nodes.values()))

    def of(self, *assets: str) -> list[Node]:
        """Return the nodes of these assets, ordered by partition."""
        found = [node for node in self.nodes.values() if node.item.asset in assets]
        return sorted(found, key=lambda node: (node.item.asset, node.item.partition))

    def inputs_of(self, node: Node, asset: str) -> list[Node]:
        """Return the inputs of a node that were made by an asset, in the order of its record."""
        return [self.nodes[name] for name in node.inputs if self.nodes[name].item.asset == asset]


def item_of(made: Artifact) -> InputArtifact:
    """Return an artifact in the form in which jobs get their inputs."""
    record = made.record
    return InputArtifact(
        asset=record["asset"],
        partition=record.get("partition", ""),
        fingerprint=made.fingerprint,
        digest=made.digest,
        path=str(made.path),
        record_digest=made.record_digest,
    )


def lineage_of(root: Path, *made: Artifact) -> Lineage:
    """Return the lineage of artifacts under `root`: all artifacts that they were made from, and guards of trainings.

    Of the models among which one was chosen, only the chosen one is in it: its weights are these.
    """
    nodes: dict[str, Node] = {}
    waiting = [_node(root, item_of(one)) for one in made]
    while waiting:
        node = waiting.pop(0)
        if node.item.fingerprint not in nodes:
            nodes[node.item.fingerprint] = node
            record = node.made.record if node.made else {}
            inputs = [named(root, entry) for entry in (*_inputs_of(record), *record.get("guards", ()))]
            waiting += [_node(root, item) for item in inputs]
    return Lineage(root, nodes)


def named(root: Path, entry: Mapping[str, Any]) -> InputArtifact:
    """Return the artifact that a record names as an input, whether it exists or not."""
    folder = artifact.folder_of(root, entry["asset"], entry["fingerprint"])
    return InputArtifact(
        asset=entry["asset"],
        partition=entry["partition"],
        fingerprint=entry["fingerprint"],
        digest=entry["digest"],
        path=str(folder),
        record_digest=entry["record_digest"],
    )


def _node(root: Path, item: InputArtifact) -> Node:
    made, problem = None, ""
    try:
        made = artifact.find(Path(item.path))
    except Damaged as error:
        problem = f"{item.where}: {error}"
    if made is None:
        problem = problem or (
            f"{item.where}: the artifact {item.fingerprint[:12]} is not under {root} any more; `pedigree run RECIPE`"
            " makes it again"
        )
        return Node(item=item, made=None, problem=problem)
    held, remark = item.record_digest or made.record_digest, ""
    if made.digest == item.digest and held in made.claims:
        remark = made.own_word_on(held)
    else:
        problem = (
            f"{item.where}: what is at {item.path} has digest {made.digest[:12]}, made from was {item.digest[:12]}; it"
            " was made anew or changed since"
        )
    both = _inputs_of(made.record), made.record.get("guards", ())
    fingerprints = [tuple(one["fingerprint"] for one in entries) for entries in both]
    return Node(item=item, made=made, problem=problem, inputs=fingerprints[0], guards=fingerprints[1], remark=remark)


def _inputs_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the inputs of a record from which its files were made, not only compared with others."""
    inputs = record.get("inputs", [])
    if not inputs or record["asset"] != CHOSEN_MODEL:
        return inputs
    return [one for one in inputs if one["fingerprint"] == record["notes"]["choice"]["fingerprint"]]


def artifacts_under(
    root: Path,
    wanted: Callable[[str], bool] = lambda asset: True,
    damaged: Callable[[str], object] = lambda problem: None,
) -> Iterator[Artifact]:
    """Yield the committed artifacts under a root whose assets are wanted; `damaged` is told of the others."""
    for folder in sorted(root.glob("*/*/artifact.json")):
        if wanted(folder.parts[-3]):
            try:
                if made := artifact.find(folder.parent):
                    yield made
            except Damaged as problem:
                damaged(str(problem))


# Trainings


@dataclass(frozen=True, slots=True)
class Training:
    """A training in a lineage: its node, its plan, and the steps that it skipped."""

    node: Node
    plan_item: InputArtifact
    plan: Plan = field(repr=False)
    ledger: Ledger

    @property
    def name(self) -> str:
        """The asset that was trained."""
        return self.node.item.asset


def trainings_of(lineage: Lineage) -> list[Training]:
    """Return every training that went into an artifact, the last one first.

    Trainings without a plan are left out, and of averaged steps all but the last one. Raise DataError if a plan or a
    model does not exist any more or its record cannot be read: nobody knows which trainings were before it.
    """
    found, earlier = [], averaged_before(lineage)
    for node in lineage.nodes.values():
        if not _is_trained(node):
            continue
        if node.made is None:
            raise DataError(node.problem)
        if node.item.fingerprint not in earlier and (plans := _plans_of(lineage, node)):
            plan = _opened_plan(plans[0])
            found.append(Training(node, plans[0].usable, plan, _ledger_of(node, plan)))
    return found


def averaged_before(lineage: Lineage) -> set[str]:
    """Return the kept steps that are averaged with a later one of their training, which read all that they had read."""
    found = set[str]()
    for mean in lineage.nodes.values():
        if mean.item.asset == AVERAGED_MODEL:
            made = {name: lineage.nodes[name].made for name in mean.inputs}
            steps = {name: one.record["settings"]["kept"]["step"] for name, one in made.items() if one is not None}
            found |= {name for name, step in steps.items() if step < max(steps.values())}
    return found


def _is_trained(node: Node) -> bool:
    return node.item.asset.endswith("_model") or node.item.asset in KEPT_ON_PAGES


def planned_of(lineage: Lineage) -> list[Training]:
    """Return a training for each plan of a lineage by which nothing was trained yet; its node is the plan itself."""
    used = {plan.item.fingerprint for node in lineage.nodes.values() for plan in _plans_of(lineage, node)}
    plans = [node for name, node in lineage.nodes.items() if _is_plan(node) and name not in used]
    return [Training(node, node.usable, _opened_plan(node), Ledger()) for node in plans]


def _plans_of(lineage: Lineage, node: Node) -> list[Node]:
    return [lineage.nodes[name] for name in node.inputs if _is_plan(lineage.nodes[name])]


def _opened_plan(node: Node) -> Plan:
    own = node.usable
    for name in own.files():
        sound(own, name)
    return read_plan(Path(own.path), digest=own.digest)


def _ledger_of(node: Node, plan: Plan) -> Ledger:
    """Return the ledger of a training, which lists the steps that it skipped, and those after the step it kept.

    A ledger file that is not in the artifact's record is ignored.
    """
    item = node.usable
    ledger = read_ledger(sound(item, LEDGER_FILE).parent) if LEDGER_FILE in item.files() else Ledger()
    if node.item.asset not in KEPT_ON_PAGES:
        return ledger
    return ledger_before(ledger, item.record()["settings"]["kept"]["step"], steps=plan.record.steps)


def _is_plan(node: Node) -> bool:
    files = node.made.record["files"] if node.made else ()
    return node.item.asset.endswith("_plan") or any(entry["path"] == PLAN_FILE for entry in files)


# Indexes


def indexes_of(lineage: Lineage) -> list[Index]:
    """Return the provenance indexes of all snapshots that an artifact was made from.

    Raise DataError if one is not made or an artifact behind it does not exist any more, and RefusedInput if one is
    damaged.
    """
    made = list(artifacts_under(lineage.root, lambda asset: asset == INDEX))
    return [_index(lineage, shards, made) for shards in lineage.of(SHARDS)]


def _index(lineage: Lineage, shards: Node, made: Sequence[Artifact]) -> Index:
    corpus = corpus_of(lineage, shards)
    wanted = {asset: node.item.digest for asset, node in corpus.items()}
    for one in made:
        if {entry["asset"]: entry["digest"] for entry in one.record["inputs"]} == wanted:
            return opened(item_of(one), {asset: node.usable for asset, node in corpus.items()})
    others = [one for one in made if one.record["partition"] == shards.item.partition]
    of_others = f", and the {len(others)} there are of other shards" if others else ""
    recipe = shards.item.partition.partition("@")[0]
    raise DataError(
        f"{INDEX} [{shards.item.partition}] of these shards ({shards.item.digest[:12]}) is not made{of_others};"
        f" `pedigree run {recipe} --until {INDEX}` makes it"
    )


def opened(item: InputArtifact, made_of: Mapping[str, InputArtifact]) -> Index:
    """Open an index after checking its files' checksums, and that it was made from these artifacts."""
    check_index(item, made_of)
    for name in FILES:
        sound(item, name)
    return Index(item, made_of, Path(item.path))


def corpus_of(lineage: Lineage, shards: Node) -> dict[str, Node]:
    """Return the artifacts of one snapshot from its extraction to its shards, by asset."""
    chain = {SHARDS: shards}
    for below, above in pairwise(CORPUS_BACKWARDS):
        chain[below].usable  # noqa: B018 - what is gone names no inputs
        chain[above] = lineage.inputs_of(chain[below], above)[-1]  # the last of several snapshots is its own
    return chain


CORPUS_BACKWARDS = (
    SHARDS,
    "decontaminated_documents",
    "deduplicated_documents",
    "filtered_documents",
    "extracted_documents",
)

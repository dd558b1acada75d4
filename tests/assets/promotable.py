"""Models up to the point of a promotion, without a stage being run: from there all is real: job, record, registry."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg

from assets.graph.pipeline import Pipeline
from assets.materialize.promote import decide_and_promote
from assets.materialize.watch import Watch
from assets.run.result import Report
from assets.run.run import run_recipe
from assets.services.stores import opened_instance
from assets.state.cell import Cell, Comparison
from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from assets.state.references import write_reference
from resources.tracking.registry import Registry
from resources.tracking.reports import Tracking
from tests.assets.fabricate import make_each, make_one
from training.contract.artifact import Artifact, write_text
from training.data.documents import write_lines
from training.recipe.recipe import Recipe

ITEMS, MARKS = 400, 20  # items of the exam, and the marks that a model has for all of them
RECIPES = Path(__file__).parent.parent / "recipes"


class WithoutWriter(Tracking):
    """The MLflow side of a root, whose reports this process sends when it waits for them.

    A root's own writer is a process that imports MLflow, which costs more than all that a test of promotions does.
    """

    def flush(self, timeout_seconds: float) -> None:
        """Send what is pending, beside other processes that may do the same."""
        while self.pending() > 0:
            self.replay()


@dataclass(frozen=True)
class Kitchen:
    """A root whose recipes' models differ in what they get right, and one registered model of its own."""

    root: Path
    uri: str
    profile: str
    model_name: str

    @property
    def tracking(self) -> Tracking:
        """Reports are sent when `model` says so."""
        return WithoutWriter(self.uri, self.root, in_background=False)

    @property
    def registry(self) -> Registry:
        """The registered model."""
        return Registry(self.tracking, self.model_name)

    def model(self, name: str, *, right: float, refused_by: str = "", **rules: Any) -> Recipe:
        """A recipe whose model is made, examined and described, and has `right` of MARKS marks for its answers."""
        shipped = load_recipe("kitchen-small", folders=(RECIPES, SHIPPED))
        rules = {"model_name": self.model_name, "max_score_drop": 0.05, **rules}
        seed = sum(map(ord, name))  # another seed of alignment: what is before it is shared
        recipe = replace(
            shipped, name=name, align=replace(shipped.align, seed=seed), promote=replace(shipped.promote, **rules)
        )
        self.make(recipe, right=right, refused_by=refused_by)
        return recipe

    def make(self, recipe: Recipe, *, right: float, refused_by: str = "") -> None:
        """What `recipe` lacks up to its card; `refused_by` is an asset whose gate says no."""
        new: list[Artifact] = []

        def made_one(comparison: Comparison, cell: Cell) -> Artifact:
            made = _make(comparison, cell, right, refused_by)
            if cell.artifact is None:
                new.append(made)
            return made

        comparison = make_each(
            recipe, self.root, made_one, leave=lambda cell: cell.asset == "promoted_model" or cell.is_damaged
        )
        model = comparison.cells["aligned_model", recipe.name]
        made = {"asset": model.asset, "partition": model.partition, "fingerprint": model.fingerprint}
        tags = {"recipe_digest": "d"}
        self.tracking.stage_run(f"launch-of-{recipe.name}", **made, tags=tags).finish("FINISHED")
        self.tracking.replay()
        with opened_instance(self.root) as instance:  # Dagster is told what was made, as by a run
            for one in new:
                said = {"fingerprint": one.fingerprint, "digest": one.digest, "record_digest": one.record_digest}
                where = {"asset_key": one.record["asset"], "partition": one.record["partition"]}
                instance.report_runless_asset_event(dg.AssetMaterialization(**where, metadata=said))

    def run(self, recipe: Recipe) -> Report:
        """`pedigree run`: what is left is the decision."""
        return run_recipe(recipe, self.root, profile=self.profile, until=None, snapshots=(), announce=lambda *_: None)

    def decide(self, recipe: Recipe) -> dict[str, Any]:
        """Materialize `promoted_model` as Dagster's asset does; what it says. StageFailed and TrackingError pass."""
        comparison = compare(recipe, self.root)
        pipeline = Pipeline(root=str(self.root), profile=self.profile)
        watch = Watch(
            launch=uuid.uuid4().hex,
            run_id=f"run-of-{recipe.name}",
            say=lambda _: None,
            is_canceling=lambda: False,
            observe=lambda _: None,
        )
        return decide_and_promote(comparison.cells["promoted_model", recipe.name], comparison, pipeline, watch)[1]

    def aliases(self) -> dict[str, str]:
        """Who holds which alias."""
        found = {alias: self.registry.holder(alias) for alias in ("champion", "previous", "candidate")}
        return {alias: version.version for alias, version in found.items() if version is not None}

    def decision(self, recipe: Recipe) -> dict[str, Any]:
        """The decision as it lies there."""
        made = compare(recipe, self.root).cells["promoted_model", recipe.name].artifact
        assert made is not None
        return json.loads((made.path / "decision.json").read_text("utf-8"))


def _make(comparison: Comparison, cell: Cell, right: float, refused_by: str) -> Artifact:
    """One artifact; what another recipe made is pointed to."""
    if cell.artifact is not None:
        write_reference(comparison.root, cell.artifact, cell.partition)
        return cell.artifact
    gates = ["contamination"] if cell.asset == "contamination_report" else []
    more = _FILES.get(cell.asset, lambda folder, right: ())
    failing = "contamination" if cell.asset == refused_by else ""
    return make_one(comparison, cell, failing, more=lambda folder: more(folder, right), gates=[] if failing else gates)


def _scores(folder: Path, right: float) -> Iterable[str]:
    """Each model gets the first items right; kept item by item, as the stage does."""
    entry = {"score": right / MARKS, "stderr": 0.1, "n": ITEMS, "chance": 0.25, "metric": "acc", "metrics": {}}
    scores = {model: {"cloze": entry} for model in ("base", "sft", "aligned")}
    write_text(folder / "scores.json", json.dumps(scores))
    rows = [
        {
            "item": f"cloze/{item}",
            "prompt": f"Is it {item}?",
            "target": str(item),
            "response": f"It is {item}.",
            "correct": item < right / MARKS * ITEMS,
        }
        for item in range(ITEMS)
    ]
    write_lines(folder / "samples" / "aligned_cloze.jsonl.zst", rows)
    return ("scores.json", "samples/aligned_cloze.jsonl.zst")


def _model(folder: Path, right: float) -> Iterable[str]:
    write_text(folder / "model" / "model.safetensors", f"weights of {folder.name}")
    write_text(folder / "model" / "config.json", json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    write_text(folder / "model" / "tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return ("model/config.json", "model/model.safetensors", "model/tokenizer_config.json")


_FILES = {"model_scores": _scores, "aligned_model": _model}

"""The chain: every asset, the stage that makes it, what it reads of the recipe, and what it is made from.

The one table from which partitions, fingerprints, Dagster dependencies, status and jobs follow. No Dagster in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from evaluation.stages import STAGES as EVALUATION_STAGES
from training.artifact import model_digest
from training.automation_settings import AutomationRecipe
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.generated import is_generated, source_of, versions
from training.evaluation_settings import EvaluationRecipe
from training.ladder_settings import LadderRecipe
from training.posttrain.align.method import start_gates
from training.pretrain.long_context_settings import LongContextRecipe
from training.recipe import Recipe
from training.records import differing_from_defaults, uris_in
from training.stages import SOURCES, Stage
from training.stages import STAGES as TRAINING_STAGES

Scope = Literal["snapshot", "recipe", "rung", "ladder", "doremi", "long_context", "synthesis"]
Which = Literal["same", "earlier", "every", "quality", "tokenizer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """An upstream asset, and which of its partitions are read.

    `same`: the same partition, or the recipe's. `earlier`: this snapshot and those before it. `every`: all snapshots
    (or rungs) of the recipe. `quality`, `tokenizer`: the snapshots that the recipe names for them. `when` says which
    recipes read it; None: all. An asset that a recipe does not have is no input of its others.
    """

    asset: str
    which: Which = "same"
    when: Callable[[Recipe], bool] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One asset of the chain: all that is said of it, but for what its stage's table says of the stage.

    `description` is what people read beside it in the UI. `scope` says what its partitions are: the snapshots of each
    recipe, the recipes, the rungs of each recipe's ladder, or the recipes that ask for an optional part (a ladder,
    weights by DoReMi, long context, synthetic text).
    """

    name: str
    description: str
    group: str
    kinds: tuple[str, ...]
    stage: str
    scope: Scope
    settings: Callable[[Recipe, str], dict[str, Any]]
    inputs: tuple[Input, ...] = ()
    gates: tuple[str, ...] = ()
    package: Literal["training", "evaluation"] = "training"
    shows_recipe: bool = False  # to people, and opens nothing that it names: what is made keeps its name there

    @property
    def how(self) -> Stage:
        """The stage's version, modules and libraries."""
        return (TRAINING_STAGES if self.package == "training" else EVALUATION_STAGES)[self.stage]

    @property
    def argv(self) -> tuple[str, ...]:
        """The module that runs the stage; `python -m` goes before it and the job file after it."""
        return (self.package,)


def partition_key(recipe: Recipe, part: str = "") -> str:
    """`recipe@part` of a snapshot or a rung, or `recipe` for what concerns the whole recipe."""
    return f"{recipe.name}@{part}" if part else recipe.name


def partitions_of(link: Link, recipe: Recipe) -> list[str]:
    """The partition keys that `recipe` has of an asset, in the order of its snapshots or rungs."""
    return [partition_key(recipe, part) for part in _parts(link.scope, recipe)]


# Recipes that have the assets of a scope; what a recipe does not ask for has no partition of it.
_OPTIONAL: dict[Scope, Callable[[Recipe], bool]] = {
    "ladder": lambda recipe: bool(recipe.ladder.rungs),
    "long_context": lambda recipe: recipe.long_context.tokens > 0,
    "synthesis": lambda recipe: bool(recipe.synthesis.prompts),
    "doremi": lambda recipe: bool(recipe.doremi.tokens),
}


def _parts(scope: Scope, recipe: Recipe) -> list[str]:
    """The names of a recipe's snapshots or rungs; one empty name for a scope of the whole recipe."""
    if scope == "snapshot":
        return [snapshot.name for snapshot in recipe.snapshots]
    if scope == "rung":
        return [rung.name for rung in recipe.ladder.rungs]
    return [""] if scope not in _OPTIONAL or _OPTIONAL[scope](recipe) else []


def input_partitions(item: Input, link: Link, recipe: Recipe, part: str) -> list[str]:
    """The partition keys of `item.asset` that one partition of `link` reads, in the order of snapshots or rungs."""
    names = _parts(CHAIN[item.asset].scope, recipe)
    if not names or (item.when is not None and not item.when(recipe)):
        return []
    if names == [""]:
        return [recipe.name]
    chosen = {
        "same": [part],
        "earlier": names[: names.index(part) + 1] if part in names else [],
        "every": names,
        "quality": [name for name in names if name in recipe.quality.snapshots],
        "tokenizer": [name for name in names if name in recipe.tokenizer.snapshots],
    }[item.which]
    return [partition_key(recipe, name) for name in chosen]


def _sections(*names: str) -> Callable[[Recipe, str], dict[str, Any]]:
    """A function that gives a stage these sections of the recipe, the sections of the sources that they read, and the
    checksums of the files that they name."""

    def settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
        del snapshot
        return with_data(recipe, {name: getattr(recipe, name) for name in names})

    return settings


def with_data(recipe: Recipe, sections: dict[str, Any]) -> dict[str, Any]:
    """`sections` with those of the generated sources whose URIs occur in them, and `data` (URI: sha256) when files
    are named."""
    from training.data.sources import checksum_of

    uris = sorted(set(uris_in(sections)))
    files = {uri: checksum_of(uri) for uri in uris if not is_generated(uri)}
    result = sections | _generated(recipe, {source.name for uri in uris if (source := source_of(uri))})
    if files:
        result["data"] = files
    return result


def _generated(recipe: Recipe, sources: Iterable[str]) -> dict[str, Any]:
    """The sections of generated sources, and under `sources` the version of each that is not at its first.

    So a source that writes something else marks what reads it, and nothing of a recipe that does not.
    """
    newer = versions(sources)
    return {name: getattr(recipe, name) for name in sorted(sources)} | ({"sources": newer} if newer else {})


def _measured_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """The part of `filter` that decides what is measured: a changed limit measures nothing again."""
    del snapshot
    return with_data(recipe, {"filter": recipe.filter.measured()})


def _extract_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """The section. A line of its lists that can meet no page would be taken for a rule that holds: it is refused."""
    from training.data.extract.list_check import check_lists

    del snapshot
    check_lists((*recipe.extract.blocked, *recipe.extract.takedown))
    return with_data(recipe, {"extract": recipe.extract})


def _crawl_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """A raw snapshot is its files' names, sizes and checksums, never their path."""
    from training.data.crawl.crawl import source_files

    chosen = recipe.snapshot(snapshot)
    settings: dict[str, Any] = {"snapshot": chosen}
    if chosen.source in SOURCES:
        return settings | _generated(recipe, [chosen.source])
    return settings | {"files": source_files(chosen)}


def _pretrain_settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """The model and its training. A teacher is identified by its digest, never by its path."""
    from training.data.sources import resolve

    del part
    distill = recipe.pretrain.distill
    if not distill.teacher:
        return {"model": recipe.model, "pretrain": recipe.pretrain}
    folder = Path(resolve(distill.teacher)).resolve()
    return {
        "model": recipe.model,
        "pretrain": replace(recipe.pretrain, distill=replace(distill, teacher="")),
        "teacher": {"digest": model_digest(folder), "path": str(folder)},
    }


def _plan_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    del snapshot
    return {"mixture": recipe.mixture, "pretrain": recipe.pretrain.batches}


def _on_rung(settings: Callable[[Recipe, str], dict[str, Any]]) -> Callable[[Recipe, str], dict[str, Any]]:
    """The settings of a rung's recipe: a model of the ladder is made as the recipe's own is."""
    return lambda recipe, rung: settings(recipe.on_rung(rung), "")


def _of_reference(settings: Callable[[Recipe, str], dict[str, Any]]) -> Callable[[Recipe, str], dict[str, Any]]:
    """The settings of DoReMi's reference: it is made as the recipe's own model is."""
    return lambda recipe, part: settings(recipe.as_reference(), part)


def _doremi_settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """The settings of DoReMi's proxy, which is trained as its reference is."""
    return {"doremi": recipe.doremi} | _of_reference(_sections("model", "pretrain"))(recipe, part)


def _long_plan_settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """The plan of the long-context stage is made as the base model's is."""
    return _plan_settings(recipe.in_long_context(), part)


def _long_context_settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """Model and training of the stage, how it is judged, and the rows of the base model that it is compared in."""
    del part
    longer = recipe.in_long_context()
    judged = replace(recipe.long_context, **{name: getattr(LongContextRecipe(), name) for name in _IN_PRETRAIN})
    return {
        "model": longer.model,
        "pretrain": longer.pretrain,
        "long_context": judged,
        "short": {"sequence_length": recipe.pretrain.sequence_length},
    }


# Fields of `long_context` that are in the `model` and `pretrain` of its stage.
_IN_PRETRAIN = (
    "tokens",
    "sequence_length",
    "global_batch_tokens",
    "rope_theta",
    "rope_scaling",
    "across_documents",
    "learning_rate",
    "muon_learning_rate",
    "min_loss_fall",
)


def _stays_short(recipe: Recipe) -> bool:
    """Whether the base model is what post-training begins with."""
    return not _OPTIONAL["long_context"](recipe)


def _scaling_settings(recipe: Recipe, part: str) -> dict[str, Any]:
    """How to fit, and the size of the model whose loss is predicted; the rungs' models are inputs."""
    del part
    shape = recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)
    foretold = {
        "parameters": shape.parameter_count,
        "tokens": recipe.pretrain.step_tokens,
    }
    return {"ladder": LadderRecipe(bootstrap=recipe.ladder.bootstrap, seed=recipe.ladder.seed), "foretold": foretold}


def _is_generator(asset: str) -> Callable[[Recipe], bool]:
    """Whether a recipe's synthetic text is written by `asset`."""
    return lambda recipe: recipe.synthesis.generator == asset


def _benchmark_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """Only the benchmarks: what is done with documents that hold their items is a setting of a later stage."""
    del snapshot
    return with_data(recipe, {"decontaminate": DecontaminateRecipe(benchmarks=recipe.decontaminate.benchmarks)})


def _instruction_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    del snapshot
    return with_data(recipe, {"sft": {"data": recipe.sft.data}})


def _score_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """The suites and how models are asked, without the limit on contamination, which a later stage applies."""
    del snapshot
    unjudged = replace(
        recipe.evaluation, max_contaminated_fraction=EvaluationRecipe(suites=()).max_contaminated_fraction
    )
    return with_data(recipe, {"evaluation": unjudged})


def _contamination_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """The suites and the limit on contamination. How models were asked is in the scores, which are an input."""
    del snapshot
    judged = EvaluationRecipe(
        suites=recipe.evaluation.suites, max_contaminated_fraction=recipe.evaluation.max_contaminated_fraction
    )
    return with_data(recipe, {"evaluation": judged})


def _card_settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """The whole recipe except `automation`, which does not change what is made."""
    del snapshot
    return with_data(recipe, {"recipe": replace(recipe, automation=AutomationRecipe())})


# Where a setting says only where the bytes are found, it is no part of what was asked for. What a card says of the
# recipe came in through its inputs: snapshots by their files, a teacher by its digest.
_LOCATIONS = {
    "crawl": (("snapshot", "paths"), ("snapshot", "base_url")),
    "pretrain": (("teacher", "path"),),
    "card": (
        ("recipe", "snapshots", "paths"),
        ("recipe", "snapshots", "base_url"),
        ("recipe", "pretrain", "distill", "teacher"),
    ),
}
# What a decision was compared with is recorded in the artifact; it does not make the decision outdated by itself.
_CONTEXT = {"promote": ("champion",)}


def asked_settings(link: Link, settings: dict[str, Any]) -> dict[str, Any]:
    """The part of `settings` that the fingerprint covers: what differs from the defaults, less locations.

    A file of this machine is its checksum, wherever it stands.
    """
    asked = {
        name: differing_from_defaults(section)
        for name, section in settings.items()
        if name not in _CONTEXT.get(link.stage, ())
    }
    for place in _LOCATIONS.get(link.stage, ()):
        _remove(asked, place)
    files = settings.get("data", {})
    return replaced(asked, {uri: f"sha256:{files[uri]}" for uri in files if _is_local(uri)})


def _remove(value: Any, place: tuple[str, ...]) -> None:
    """Take a field out of nested plain data, and out of every element where there is a list on the way."""
    if isinstance(value, list):
        for item in value:
            _remove(item, place)
    elif isinstance(value, dict) and len(place) == 1:
        value.pop(place[0], None)
    elif isinstance(value, dict) and place[0] in value:
        _remove(value[place[0]], place[1:])


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")


def replaced(value: Any, names: Mapping[str, str]) -> Any:
    """Plain data with other names for some of its texts, also where they are keys."""
    if isinstance(value, dict):
        return {names.get(key, key): replaced(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


CHAIN: dict[str, Link] = {
    link.name: link
    for link in (
        Link(
            name="crawl_archives",
            description="WARC files (or already extracted text) of one snapshot, with sizes and checksums.",
            group="corpus",
            kinds=("warc",),
            stage="crawl",
            scope="snapshot",
            settings=_crawl_settings,
            gates=("counts_balance",),
        ),
        Link(
            name="extracted_documents",
            description=(
                "Text of the snapshot's pages with id, URL, WARC file and offset, date, title and language hint. "
                "Damaged records are quarantined with offset and reason."
            ),
            group="corpus",
            kinds=("parquet",),
            stage="extract",
            scope="snapshot",
            settings=_extract_settings,
            inputs=(Input(asset="crawl_archives"),),
            gates=("counts_balance",),
        ),
        Link(
            name="quality_models",
            description=(
                "Models that rate text: an n-gram model for perplexity and a linear classifier, trained on the texts "
                "that the recipe names."
            ),
            group="corpus",
            kinds=("numpy", "safetensors"),
            stage="quality",
            scope="recipe",
            settings=_sections("quality"),
            inputs=(Input(asset="extracted_documents", which="quality"),),
            gates=("counts_balance", "classifier_auc", "labelled_auc", "toxicity_auc"),
        ),
        Link(
            name="document_scores",
            description=(
                "What the recipe's rules measure on each document of one snapshot: language, counts, quality, "
                "toxicity. The limits of the rules do not change it."
            ),
            group="corpus",
            kinds=("numpy", "parquet"),
            stage="score",
            scope="snapshot",
            settings=_measured_settings,
            inputs=(Input(asset="extracted_documents"), Input(asset="quality_models")),
            gates=("counts_balance",),
        ),
        Link(
            name="filtered_documents",
            description=(
                "Documents of one snapshot that pass every rule of the recipe, with personal data redacted. Dropped "
                "documents are kept beside them with the rule that dropped them."
            ),
            group="corpus",
            kinds=("parquet",),
            stage="filter",
            scope="snapshot",
            settings=_sections("filter"),
            inputs=(Input(asset="extracted_documents"), Input(asset="document_scores")),
            gates=("counts_balance", "kept_fraction", "kept_fraction_by_group"),
        ),
        Link(
            name="document_signatures",
            description=(
                "MinHash signatures of one snapshot's filtered documents, so that later snapshots need not read its "
                "text."
            ),
            group="corpus",
            kinds=("numpy",),
            stage="sign",
            scope="snapshot",
            settings=_sections("dedup"),
            inputs=(Input(asset="filtered_documents"),),
            gates=("counts_balance",),
        ),
        Link(
            name="deduplicated_documents",
            description=(
                "Documents that are no exact copy and no verified near-duplicate of an earlier document, in this or "
                "an earlier snapshot. Removed documents name the one that they repeat."
            ),
            group="corpus",
            kinds=("numpy", "parquet"),
            stage="dedup",
            scope="snapshot",
            settings=_sections("dedup"),
            inputs=(
                Input(asset="filtered_documents", which="earlier"),
                Input(asset="document_signatures", which="earlier"),
            ),
            gates=("counts_balance", "survival"),
        ),
        Link(
            name="benchmark_index",
            description="An index of the n-grams of every benchmark item that must not be trained on.",
            group="corpus",
            kinds=("numpy", "parquet"),
            stage="benchmarks",
            scope="recipe",
            settings=_benchmark_settings,
        ),
        Link(
            name="decontaminated_documents",
            description=(
                "Documents that contain no benchmark item. Documents that contain one are removed or flagged, with "
                "the item and the span."
            ),
            group="corpus",
            kinds=("numpy", "parquet"),
            stage="decontaminate",
            scope="snapshot",
            settings=_sections("decontaminate"),
            inputs=(Input(asset="deduplicated_documents"), Input(asset="benchmark_index")),
            gates=("counts_balance",),
        ),
        Link(
            name="tokenizer",
            description=("The byte-level vocabulary with its special tokens, and its fertility (bytes per token)."),
            group="tokens",
            kinds=("tokenizers", "huggingface"),
            stage="tokenizer",
            scope="recipe",
            settings=_sections("tokenizer"),
            inputs=(Input(asset="decontaminated_documents", which="tokenizer"),),
            gates=("counts_balance", "all_bytes", "round_trip", "fertility"),
        ),
        Link(
            name="token_shards",
            description=(
                "Memory-mapped files of the token ids of one snapshot. A table beside each leads from every token to "
                "its document."
            ),
            group="tokens",
            kinds=("tokenizers", "numpy"),
            stage="tokenize",
            scope="snapshot",
            settings=_sections("shards"),
            inputs=(Input(asset="decontaminated_documents"), Input(asset="tokenizer")),
            gates=("counts_balance", "shards_decode"),
        ),
        Link(
            name="reference_plan",
            description=(
                "The data order of DoReMi's reference model, a small model trained on the mixture that the recipe "
                "begins with."
            ),
            group="mixture",
            kinds=("numpy",),
            stage="plan",
            scope="doremi",
            settings=_of_reference(_plan_settings),
            inputs=(Input(asset="token_shards", which="every"), Input(asset="tokenizer")),
            gates=("counts_balance", "shares"),
        ),
        Link(
            name="reference_model",
            description="DoReMi's reference: a small model, trained as the base model is.",
            group="mixture",
            kinds=("pytorch", "safetensors"),
            stage="pretrain",
            scope="doremi",
            settings=_of_reference(_sections("model", "pretrain")),
            inputs=(
                Input(asset="reference_plan"),
                Input(asset="token_shards", which="every"),
                Input(asset="tokenizer"),
            ),
            gates=("loss_finite_and_falling", "export_equals_trainer"),
        ),
        Link(
            name="mixture_weights",
            description=(
                "The weight of each source, found by DoReMi: a source gets more weight where a small proxy model is "
                "worse than the reference."
            ),
            group="mixture",
            kinds=("pytorch", "json"),
            stage="doremi",
            scope="doremi",
            settings=_doremi_settings,
            inputs=(
                Input(asset="reference_plan"),
                Input(asset="reference_model"),
                Input(asset="token_shards", which="every"),
                Input(asset="tokenizer"),
            ),
        ),
        Link(
            name="training_plan",
            description=(
                "The data order: mixture, epochs and held-out documents. It fixes which tokens each training step sees."
            ),
            group="tokens",
            kinds=("numpy",),
            stage="plan",
            scope="recipe",
            settings=_plan_settings,
            inputs=(
                Input(asset="token_shards", which="every"),
                Input(asset="tokenizer"),
                Input(asset="mixture_weights"),
            ),
            gates=("counts_balance", "shares"),
        ),
        Link(
            name="base_model",
            description="The pretrained decoder in the transformers layout, with held-out bits per byte.",
            group="models",
            kinds=("pytorch", "safetensors"),
            stage="pretrain",
            scope="recipe",
            settings=_pretrain_settings,
            inputs=(Input(asset="training_plan"), Input(asset="token_shards", which="every"), Input(asset="tokenizer")),
            gates=("loss_finite_and_falling", "export_equals_trainer"),
        ),
        Link(
            name="long_context_plan",
            description="The data order of the long-context stage.",
            group="long_context",
            kinds=("numpy",),
            stage="plan",
            scope="long_context",
            settings=_long_plan_settings,
            inputs=(
                Input(asset="token_shards", which="every"),
                Input(asset="tokenizer"),
                Input(asset="mixture_weights", when=lambda recipe: not recipe.mixture.phases),
            ),
            gates=("counts_balance", "shares"),
        ),
        Link(
            name="long_context_model",
            description=(
                "The base model trained further on longer rows, with the needles that it finds and its loss in short "
                "rows."
            ),
            group="long_context",
            kinds=("pytorch", "safetensors"),
            stage="extend",
            scope="long_context",
            settings=_long_context_settings,
            inputs=(
                Input(asset="base_model"),
                Input(asset="long_context_plan"),
                Input(asset="token_shards", which="every"),
                Input(asset="tokenizer"),
            ),
            gates=("loss_finite_and_falling", "export_equals_trainer", "needles_found", "short_context_kept"),
        ),
        Link(
            name="ladder_plan",
            description="The data order of one small model of the recipe's scaling ladder.",
            group="ladder",
            kinds=("numpy",),
            stage="plan",
            scope="rung",
            settings=_on_rung(_plan_settings),
            inputs=(
                Input(asset="token_shards", which="every"),
                Input(asset="tokenizer"),
                Input(asset="mixture_weights"),
            ),
            gates=("counts_balance", "shares"),
        ),
        Link(
            name="ladder_model",
            description="One small model of the recipe's scaling ladder, trained as the base model is.",
            group="ladder",
            kinds=("pytorch", "safetensors"),
            stage="pretrain",
            scope="rung",
            settings=_on_rung(_pretrain_settings),
            inputs=(Input(asset="ladder_plan"), Input(asset="token_shards", which="every"), Input(asset="tokenizer")),
            gates=("loss_finite_and_falling", "export_equals_trainer"),
        ),
        Link(
            name="scaling_fit",
            description=(
                "How the held-out loss of the ladder's models falls with parameters and tokens, with intervals, and "
                "the loss that it predicts for the recipe's own model."
            ),
            group="ladder",
            kinds=("scipy",),
            stage="scaling",
            scope="ladder",
            package="evaluation",
            settings=_scaling_settings,
            inputs=(Input(asset="ladder_model", which="every"),),
            gates=("loss_falls_with_size_and_tokens",),
        ),
        Link(
            name="instruction_data",
            description="Conversations for supervised fine-tuning, each with its source and generator.",
            group="models",
            kinds=("json",),
            stage="instructions",
            scope="recipe",
            settings=_instruction_settings,
            gates=("counts_balance",),
        ),
        Link(
            name="sft_model",
            description="The base model fine-tuned on conversations; only the assistant's tokens count in the loss.",
            group="models",
            kinds=("trl", "safetensors"),
            stage="sft",
            scope="recipe",
            settings=_sections("sft"),
            inputs=(
                Input(asset="base_model", when=_stays_short),
                Input(asset="long_context_model"),
                Input(asset="instruction_data"),
            ),
            gates=("counts_balance", "template", "loss_finite_and_falling", "merged_equals_adapter"),
        ),
        Link(
            name="preference_data",
            description="Prompts with a chosen and a rejected answer, each with its source.",
            group="models",
            kinds=("json",),
            stage="preferences",
            scope="recipe",
            settings=_sections("preferences"),
            gates=("counts_balance",),
        ),
        Link(
            name="reward_model",
            description=(
                "A reward model (Bradley-Terry) trained on the preferences, with its accuracy on held-out pairs."
            ),
            group="models",
            kinds=("trl", "safetensors"),
            stage="reward",
            scope="recipe",
            settings=_sections("reward"),
            inputs=(Input(asset="sft_model"), Input(asset="preference_data")),
            gates=("counts_balance", "loss_finite", "held_out_pair_accuracy"),
        ),
        Link(
            name="aligned_model",
            description="The SFT model aligned by the preference method that the recipe names.",
            group="models",
            kinds=("trl", "safetensors"),
            stage="align",
            scope="recipe",
            settings=_sections("align"),
            inputs=(Input(asset="sft_model"), Input(asset="preference_data"), Input(asset="reward_model")),
            gates=("counts_balance", "loss_finite", *start_gates(), "merged_equals_adapter"),
        ),
        Link(
            name="synthetic_text",
            description=(
                "Text written by a model of the recipe. Every row has its generator, prompt, seed and sampling "
                "settings; another recipe can use it as a source."
            ),
            group="models",
            kinds=("json",),
            stage="synthesize",
            scope="synthesis",
            settings=_sections("synthesis"),
            inputs=tuple(
                Input(asset=asset, when=_is_generator(asset))
                for asset in ("base_model", "long_context_model", "sft_model", "aligned_model")
            ),
            gates=("counts_balance",),
        ),
        Link(
            name="model_scores",
            description=(
                "Benchmark scores of the base, SFT and aligned models with standard errors; every answer is kept."
            ),
            group="reports",
            kinds=("lm-eval",),
            stage="evaluate",
            scope="recipe",
            package="evaluation",
            settings=_score_settings,
            inputs=(
                Input(asset="base_model"),
                Input(asset="sft_model"),
                Input(asset="aligned_model"),
                Input(asset="reward_model"),
            ),
            gates=("scores_complete",),
        ),
        Link(
            name="contamination_report",
            description=(
                "Which items of the scored benchmarks occur in the training data, and each model's scores on the "
                "items that do and do not occur."
            ),
            group="reports",
            kinds=("numpy", "json"),
            stage="contamination",
            scope="recipe",
            package="evaluation",
            settings=_contamination_settings,
            inputs=(
                Input(asset="decontaminated_documents", which="every"),
                Input(asset="token_shards", which="every"),
                Input(asset="instruction_data"),
                Input(asset="preference_data"),
                Input(asset="model_scores"),
            ),
            gates=("contamination",),
        ),
        Link(
            name="model_card",
            description="The model card and one self-contained report of the whole run.",
            group="reports",
            kinds=("markdown", "html"),
            stage="card",
            scope="recipe",
            package="evaluation",
            shows_recipe=True,
            settings=_card_settings,
            inputs=(
                Input(asset="crawl_archives", which="every"),
                Input(asset="extracted_documents", which="every"),
                Input(asset="quality_models"),
                Input(asset="document_scores", which="every"),
                Input(asset="filtered_documents", which="every"),
                Input(asset="document_signatures", which="every"),
                Input(asset="deduplicated_documents", which="every"),
                Input(asset="benchmark_index"),
                Input(asset="decontaminated_documents", which="every"),
                Input(asset="tokenizer"),
                Input(asset="token_shards", which="every"),
                Input(asset="training_plan"),
                Input(asset="base_model"),
                Input(asset="long_context_plan"),
                Input(asset="long_context_model"),
                Input(asset="instruction_data"),
                Input(asset="sft_model"),
                Input(asset="preference_data"),
                Input(asset="reward_model"),
                Input(asset="aligned_model"),
                Input(asset="model_scores"),
                Input(asset="contamination_report"),
            ),
        ),
        Link(
            name="promoted_model",
            description=(
                "The registered model version. It becomes champion only when the scores and the contamination report "
                "of exactly these artifacts pass. evaluation.gate decides; the MLflow registry carries the decision "
                "out."
            ),
            group="reports",
            kinds=("mlflow",),
            stage="promote",
            scope="recipe",
            package="evaluation",
            settings=_sections("promote"),
            inputs=(
                Input(asset="model_scores"),
                Input(asset="contamination_report"),
                Input(asset="model_card"),
                Input(asset="aligned_model"),
            ),
            gates=("promotion",),
        ),
    )
}


def in_order(until: str | None = None) -> list[Link]:
    """The links in an order in which inputs come first; up to and with the ancestors of `until` when it is given."""
    links = list(CHAIN.values())
    if until is None:
        return links
    wanted = ancestors(until) | {until}
    return [link for link in links if link.name in wanted]


def ancestors(name: str) -> set[str]:
    """Every asset that `name` is made from, near and far."""
    found: set[str] = set()
    waiting = [item.asset for item in CHAIN[name].inputs]
    while waiting:
        asset = waiting.pop()
        if asset not in found:
            found.add(asset)
            waiting.extend(item.asset for item in CHAIN[asset].inputs)
    return found


def descendants(name: str) -> set[str]:
    """Every asset that is made from `name`, near and far."""
    return {other for other in CHAIN if name in ancestors(other)}

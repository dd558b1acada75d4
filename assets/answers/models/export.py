"""`pedigree export`: lay out a recipe's model or corpus as a repository of a model hub."""

from __future__ import annotations

from pathlib import Path

from assets.answers.models.attest import attested_export, check_key
from assets.answers.trace.kept_step import kept_asset
from assets.registry.kept_digests import check_witnessed
from assets.services.sent import sent_to
from assets.state.cell import Comparison
from assets.state.chain import partition_key
from assets.terminal.standard_error import say
from evaluation.hub.repository import Snapshot, export_corpus, export_model
from resources.tracking.reports import Tracking
from training.contract.artifact import Artifact
from training.contract.files.checksums import digest_of
from training.contract.files.objects import Objects
from training.contract.job import DataError, InputArtifact
from training.contract.records import no_such
from training.contract.scopes import (
    AVERAGE,
    AVERAGED_MODEL,
    CHOSEN_MODEL,
    QUANTIZED,
    QUANTIZED_MODEL,
    WHOLE,
    last_model,
)
from training.provenance.lineage import lineage_of
from training.quantize.gguf_file import check_gguf, write_gguf

CORPUS, SCORES = "decontaminated_documents", "model_scores"
OF_STEPS = (*WHOLE, AVERAGED_MODEL, QUANTIZED_MODEL)  # the scores of the recipe's models are not theirs
MODELS = ("aligned_model", "sft_model", "long_context_model", "base_model", CHOSEN_MODEL, *OF_STEPS)


def export(
    comparison: Comparison,
    asset: str,
    target: Path | Objects,
    *,
    step: str = "",
    tracking: Tracking,
    key: Path | None = None,
    gguf: str = "",
    named: str = "",
) -> list[str]:
    """Write an asset of a recipe (by default its last model) to `target`, and return the names of the files.

    `step` is the part of a kept step, such as `step-500`, `average` or `quantized`, which is written instead, without
    scores.
    A model has its attestation beside it and, with a key, is signed; `gguf` is the kind of numbers of a file for
    llama.cpp, of which there is none by default. Raise DataError if the asset is no model and no
    corpus, if it is not made, if `target` is not empty, if the key cannot be used, or if Dagster, MLflow or descendants
    know another record of what is exported, of a model's card and scores, or of anything behind them. `named` is the
    name or path by which a person gave the recipe. In a store, an export of the same that was killed is gone on with.
    """
    recipe = comparison.recipe
    if step in (named_so := {AVERAGE: AVERAGED_MODEL, QUANTIZED: QUANTIZED_MODEL}):
        asset, step = asset or named_so[step], ""
    kept = kept_asset(step) if step else ""
    if step and asset not in ("", kept):
        raise DataError(f"export: {step} is one of {kept}; leave out --asset {asset}")
    asset = asset or kept or last_model(recipe)
    if recipe.sees_ahead and asset in MODELS:
        raise DataError(
            f"export: {asset} sees later tokens, by pretrain.objective {recipe.pretrain.objective.kind}; a class of"
            " transformers for causal models would load it and see only what comes before, so none is written."
            f" --asset {CORPUS} exports the pages"
        )
    if isinstance(target, Objects):
        of = partition_key(recipe, step)
        cells = [one for one in comparison.cells.values() if one.asset == asset and (not step or one.partition == of)]
        what = f"{asset} of {of} ({digest_of([[one.partition, one.fingerprint] for one in cells])[:12]})"
        # Without config.json transformers reads nothing there. A corpus has no such file; with its card it is whole
        with sent_to(target, what, last="README.md" if asset == CORPUS else "config.json") as folder:
            return export(comparison, asset, folder, step=step, tracking=tracking, key=key, gguf=gguf, named=named)
    if key is not None and asset == CORPUS:
        raise DataError("export: only models are signed; leave out --key")
    if gguf and asset == CORPUS:
        raise DataError("export: only models are written as GGUF; leave out --gguf")
    check_key(key)
    if asset == CORPUS:
        keys = [partition_key(recipe, one.name) for one in recipe.snapshots]
        _check_witnessed(comparison, tracking, *(comparison.made(CORPUS, key, named=named) for key in keys))
        return export_corpus(_snapshots(comparison), recipe.name, target, provider=recipe.provider)
    if asset not in MODELS:
        raise DataError(no_such(f"--asset {asset}: cannot be exported", asset, (*MODELS, CORPUS)))
    sources = [one.uri for one in (*recipe.sft.data, *recipe.preferences.data)]
    model = comparison.made(asset, partition_key(recipe, step), named=named)
    if gguf:
        check_gguf(model.file("model"), gguf)
    card = comparison.made("model_card", recipe.name, named=named)
    scored = asset not in OF_STEPS and recipe.evaluation.suites and (SCORES, recipe.name) in comparison.cells
    scores = comparison.made(SCORES, recipe.name, named=named) if scored else None
    _check_witnessed(comparison, tracking, model, card, *([scores] if scores else []))
    lineage = lineage_of(comparison.root, model)
    behind = [(node.made.path, node.made.record) for node in lineage.nodes.values() if node.made]
    names = export_model(model, card, _snapshots(comparison), sources, target, scores=scores, behind=behind)
    if gguf:
        names = [*names, f"{recipe.name}-{gguf.upper()}.gguf"]
        write_gguf(target, target / names[-1], kind=gguf, name=recipe.name)
    return sorted([*names, *attested_export(lineage, target, key, comparison.root, tracking)])


def _check_witnessed(comparison: Comparison, tracking: Tracking, *made: Artifact) -> None:
    """Check these artifacts and everything behind them, and say which store could not be asked."""
    if unasked := check_witnessed(lineage_of(comparison.root, *made), comparison.root, tracking, all_told=True):
        say(unasked)


def _snapshots(comparison: Comparison) -> list[Snapshot]:
    found = []
    for snapshot in comparison.recipe.snapshots:
        key = partition_key(comparison.recipe, snapshot.name)
        documents, shards = (_input(comparison, asset, key) for asset in (CORPUS, "token_shards"))
        found.append(Snapshot(name=snapshot.name, documents=documents, shards=shards))
    return found


def _input(comparison: Comparison, asset: str, partition: str) -> InputArtifact:
    made = comparison.made(asset, partition)
    return InputArtifact(
        asset=asset, partition=partition, fingerprint=made.fingerprint, digest=made.digest, path=str(made.path)
    )

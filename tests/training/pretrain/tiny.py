"""Tiny real inputs for the trainer: a byte tokenizer, shards of made-up sentences, a plan, and jobs over them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tests.jobs import commit_by_hand, job_by_hand
from training.contract import artifact
from training.contract.job import InputArtifact, Job, Outcome, Work
from training.contract.progress import METRICS_FILE, Progress
from training.contract.records import write_record
from training.contract.run_settings import RunSettings
from training.order import plan as plan_stage
from training.order.batch_settings import BatchPhase as BatchPhase
from training.order.batches import Plan, Shards, open_shards, read_plan
from training.order.settings import MixtureRecipe
from training.order.stage import settings_of
from training.pretrain.models import export
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.settings import PretrainRecipe

EOS = 0
VOCABULARY = 258
WORDS = "stir the warm soup slowly then add salt and serve it cold with bread or rice".split()

MODEL = ModelRecipe(width=32, layers=2, heads=4, kv_heads=2, mlp_width=48, max_length=64)
PRETRAIN = PretrainRecipe(
    tokens=12 * 256, sequence_length=32, global_batch_tokens=256, learning_rate=1e-2, muon_learning_rate=0.02, seed=3
)


def sentence(seed: object, words: int = 12) -> str:
    """Text that is the same for the same seed."""
    chosen = random.Random(str(seed))
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def commit(folder: Path, asset: str, files: list[str], **fields: Any) -> InputArtifact:
    """Write the `artifact.json` of a made-up artifact and name it as an input."""
    return commit_by_hand(folder, asset, files, partition="tiny", fingerprint=folder.name, **fields)


def make_tokenizer(folder: Path, *, more: Sequence[str] = ()) -> InputArtifact:
    """Bytes as tokens: id 0 ends a text, 1 pads, byte b is b + 2; `more` special tokens follow."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, "<|pad|>": 1} | {
        character: number + 2 for number, character in enumerate(alphabet)
    }
    made = Tokenizer(models.BPE(vocabulary, []))
    made.add_special_tokens(["<|endoftext|>", "<|pad|>", *more])
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return commit(folder, "tokenizer", ["tokenizer.json", "tokenizer_config.json"])


def built(shape: ModelConfig, recipe: PretrainRecipe, start: Path | None = None) -> Decoder:
    """A whole model in memory, with the weights with which training begins."""
    from training.pretrain.stages.pretrain import first_weights

    model = Decoder(shape)
    own = dict(export.own_views(model))
    with torch.no_grad():
        for name, weight in first_weights(shape, recipe, start):
            own[name].copy_(weight)
    return model


def compared(model: Decoder, folder: Path, tokens: torch.Tensor) -> export.LogitDifference:
    """Compare the logits of the exported model with those of a trained model that is whole in memory."""
    with torch.no_grad():
        ours = model.logits(tokens, one_document(tokens, dtype=torch.float32, window=model.config.window))
    return export.difference(ours, folder, tokens)


def make_shards(
    folder: Path, tokenizer: InputArtifact, texts: dict[str, list[str]], *, shard_documents: int = 20
) -> InputArtifact:
    """A `token_shards` artifact of the texts of each source."""
    from tokenizers import Tokenizer

    encoding = Tokenizer.from_file(str(tokenizer.file("tokenizer.json")))
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    rows = [
        (f"{folder.name}/{source}/{number:05d}", source, text)
        for source, own in texts.items()
        for number, text in enumerate(own)
    ]
    files = ["shards.json"]
    for shard, start in enumerate(range(0, len(rows), shard_documents)):
        part = rows[start : start + shard_documents]
        documents = [[*encoding.encode(text).ids, EOS] for _, _, text in part]
        name = f"shards/{shard:05d}"
        np.concatenate(documents).astype("<u2").tofile(folder / f"{name}.bin")
        np.save(folder / f"{name}.offsets.npy", np.cumsum([0, *map(len, documents)]))
        table = {
            "id": [row[0] for row in part],
            "source": [row[1] for row in part],
            "tokens": [len(document) for document in documents],
            "bytes": [len(row[2].encode()) for row in part],
        }
        pq.write_table(pa.table(table), folder / f"{name}.documents.parquet")
        files += [f"{name}.bin", f"{name}.offsets.npy", f"{name}.documents.parquet"]
    listing = {"tokenizer_digest": tokenizer.digest, "dtype": "uint16", "eos_id": EOS}
    artifact.write_json(folder / "shards.json", listing)
    return commit(folder, "token_shards", files)


class _EachLine:
    """A stream that is open only while a line is written, so that no test leaves one behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(text)

    def flush(self) -> None:
        pass


def progress_in(folder: Path) -> Progress:
    """What a stage reports to."""
    progress = Progress(folder, enabled=False)
    progress._metrics = _EachLine(folder / METRICS_FILE)  # type: ignore[assignment]
    return progress


def work_in(folder: Path) -> Work:
    """A place to write, as the runner gives it."""
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    return Work(path=folder, scratch=folder / "scratch", progress=progress_in(folder))


def job_of(stage: str, settings: dict[str, Any], inputs: tuple[InputArtifact, ...], output: Path, **run: Any) -> Job:
    """A job with the given settings and inputs."""
    asset = {"plan": "training_plan", "pretrain": "base_model"}[stage]
    called = {"asset": asset, "partition": "tiny", "recipe": "tiny", "fingerprint": output.name}
    plain = {name: write_record(section) for name, section in settings.items()}
    return job_by_hand(stage, output, plain, inputs, run=RunSettings(**run), **called)


class TinyChain:
    """Tokenizer, shards and plan under one folder."""

    def __init__(
        self,
        root: Path,
        *,
        texts: dict[str, list[str]] | None = None,
        mixture: MixtureRecipe | None = None,
        pretrain: PretrainRecipe = PRETRAIN,
        special_tokens: Sequence[str] = (),
    ) -> None:
        self.root, self.pretrain = root, pretrain
        texts = texts or {source: [sentence((source, number)) for number in range(60)] for source in ("books", "web")}
        self.tokenizer = make_tokenizer(root / "tokenizer" / "t", more=special_tokens)
        self.shards = make_shards(root / "token_shards" / "s", self.tokenizer, texts)
        self.mixture = mixture or MixtureRecipe(weights=dict.fromkeys(texts, 1.0), held_out_fraction=0.1)
        self.outcome = self.make_plan()
        self.plan_artifact = commit(root / "training_plan" / "p", "training_plan", list(self.outcome.files))

    def make_plan(self) -> Outcome:
        """Run the plan stage."""
        job = job_of(
            "plan",
            settings_of(self.mixture, self.pretrain),
            (self.shards, self.tokenizer),
            self.root / "training_plan" / "p",
        )
        return plan_stage.run(job, work_in(self.root / "training_plan" / "p"))

    @property
    def plan(self) -> Plan:
        return read_plan(Path(self.plan_artifact.path), digest=self.plan_artifact.digest)

    def open_shards(self) -> Shards:
        return open_shards(self.plan, {self.shards.fingerprint: self.shards}, verify=True)

    def job(
        self, name: str = "m", *, model: ModelRecipe = MODEL, pretrain: PretrainRecipe | None = None, **run: Any
    ) -> Job:
        """The job that trains the base model."""
        return job_of(
            "pretrain",
            {"model": model, "pretrain": pretrain or self.pretrain},
            (self.plan_artifact, self.shards, self.tokenizer),
            self.root / "base_model" / name,
            **run,
        )

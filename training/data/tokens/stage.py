"""Stages `tokenizer`, which trains a vocabulary, and `tokenize`, which makes shards of token ids."""

from __future__ import annotations

from training.data.sections import sections
from training.stage import Asset, Input, Stage

TOKENIZER = Stage(
    name="tokenizer",
    version="1",
    module="training.data.tokens.tokenizer",
    libraries=("tokenizers",),
    kinds=("tokenizers", "huggingface"),
    gates=("counts_balance", "all_bytes", "round_trip", "fertility"),
    reads=("decontaminated_documents",),
)
TOKENIZE = Stage(
    name="tokenize",
    version="1",
    module="training.data.tokens.tokenize",
    libraries=("tokenizers",),
    kinds=("tokenizers", "numpy"),
    gates=("counts_balance", "shards_decode"),
    in_ranks=True,
    by_file=("decontaminated_documents", "tokenizer"),
    reads=("decontaminated_documents",),
)

ASSETS = (
    Asset(
        name="tokenizer",
        stage=TOKENIZER,
        description="The byte-level vocabulary, trained or adopted, and how many bytes of text a token stands for.",
        group="training_data",
        scope="corpus",
        settings=sections("tokenizer"),
        inputs=(Input(asset="decontaminated_documents", which="tokenizer"), Input(asset="adopted_model")),
    ),
    Asset(
        name="token_shards",
        stage=TOKENIZE,
        description=(
            "Memory-mapped files with the token ids of one snapshot. A table beside each file maps every token to its "
            "document."
        ),
        group="training_data",
        scope="snapshot",
        settings=sections("shards"),
        inputs=(Input(asset="decontaminated_documents"), Input(asset="tokenizer")),
    ),
)

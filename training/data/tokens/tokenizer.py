"""Stage `tokenizer`: trains a byte-level vocabulary on a fixed sample of the snapshots that the recipe names for it.

`tokenizer.json` and `tokenizer_config.json` load with `tokenizers` and with transformers' `AutoTokenizer`. Special
tokens have the first ids, in the recipe's order. The first one ends every document (and may begin a text); the second
one is for padding. Post-training adds the chat template.

If the recipe adopts a model or a tokenizer, nothing is trained, and only the fertility is measured. `provenance.json`
says what is known of a tokenizer that is adopted alone.

Text is split by Qwen2's pattern (GPT-4's with single digits), so that numbers have one spelling. Nothing is normalized,
so that every text is restored exactly. Special tokens never occur in text: the encoder of `load_tokenizer` encodes a
text that looks like a special token with ordinary tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.contract.artifact import manifest, sha256_of, write_json, write_text
from training.contract.job import Counts, DataError, Gate, InputArtifact, Job, Outcome, RefusedInput, Work
from training.contract.running.phase import Phase
from training.contract.running.record_counter import Counted
from training.data.documents import JoinedFiles, document_files
from training.data.sources import open_uri
from training.data.tokens import unigram
from training.data.tokens.adopted_folder import TOKENIZER_FILES, tokenizer_digest
from training.data.tokens.adopted_vocabulary import Vocabulary, read_vocabulary
from training.data.tokens.sample import ENDINGS, Choice, TokenizerSample
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.data.words.byte_level import byte_values
from training.data.words.ngrams import words

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
PROVENANCE_FILE: Final = "provenance.json"  # of a tokenizer that is adopted alone
# Source: Qwen2 (arXiv 2407.10671), which splits text like GPT-4's cl100k, except that each digit is a piece.
PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDPIECE_SIGNS: Final = 100  # longest word that models.WordPiece accepts
NO_LIMIT: Final = int(1e30)  # transformers' value for a tokenizer without a longest text
NEVER: Final = -1e9  # a special token's score under Unigram, so that its single bytes are always more probable
HARD_STRINGS: Final = (
    "",
    " ",
    "\n\n\t  \r\n",
    "don't DON'T ſ's",
    "12345 1,234.5 ٣٤ Ⅷ ½",
    "naïve cafe\u0301 Straße İstanbul ǅ",
    "日本語と한국어 ไทย हिन्दी עברית العربية",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301\u0323",
    "\ufeffmark \u200b\u2028\u2029 \x00\x01\x7f\ufffd\U0010ffff",
    "if x:\n\treturn {'a': [1, 2]}  # ok\r\n",
    "a" * 3000,
)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a `tokenizer.json` as an encoder of plain text, which never emits a special token.

    Special tokens keep their ids (`token_to_id`). A text that looks like one is encoded with ordinary tokens.
    """
    return Tokenizer.from_str(plain_text_json(path))


def plain_text_json(path: Path) -> str:
    """Return the content of a `tokenizer.json` without added tokens, so that no text is encoded as a special token.

    Raise DataError if the file is not a readable `tokenizer.json`.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        content["added_tokens"] = []
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a tokenizer.json: {error}") from None
    return json.dumps(content, ensure_ascii=False)


def read_config(path: Path) -> dict[str, Any]:
    """Read the `tokenizer_config.json` at `path`. Raise DataError if it has no end-of-text or padding token."""
    try:
        config = json.loads(path.read_text("utf-8"))
        _ = config["eos_token"], config["pad_token"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: not a tokenizer_config.json with eos_token and pad_token: {error}") from None
    return config


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of text that each token id of a byte-level vocabulary represents."""
    latin = str.maketrans({sign: chr(value) for sign, value in byte_values().items()})
    tokens = (tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size()))
    return [token.translate(latin).encode("latin-1") for token in tokens]


# Training


def train(texts: Iterable[str], recipe: TokenizerRecipe) -> Tokenizer:
    """Train a byte-level vocabulary on texts, independent of their order and of the number of threads."""
    trained = {"bpe": _train_merges, "wordpiece": _train_merges, "unigram": _train_unigram}
    return trained[recipe.model](texts, recipe)


def _train_merges(texts: Iterable[str], recipe: TokenizerRecipe) -> Tokenizer:
    """Train BPE or WordPiece, both of which count merges.

    WordPiece needs no prefix for pieces inside a word: in a byte-level vocabulary the space marks the start of a word.
    """
    is_bpe = recipe.model == "bpe"
    tokenizer = Tokenizer(models.BPE() if is_bpe else models.WordPiece(unk_token=recipe.special_tokens[0]))
    cuts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    if not is_bpe:
        # A longer word would become one unknown token, and the search for pieces is quadratic in the word's length.
        cuts.append(pre_tokenizers.FixedLength(length=WORDPIECE_SIGNS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    make_trainer = trainers.BpeTrainer if is_bpe else partial(trainers.WordPieceTrainer, continuing_subword_prefix="")
    trainer = make_trainer(
        vocab_size=recipe.vocabulary,
        min_frequency=recipe.min_frequency,
        special_tokens=list(recipe.special_tokens),
        # Without this, a byte that does not occur in the sample would silently be dropped from every text.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_unigram(texts: Iterable[str], recipe: TokenizerRecipe) -> Tokenizer:
    """Train Unigram with our own pieces and scores, because the library's trainer gives other scores in each run."""
    cut = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    counts = Counter(word for text in texts for word, _ in cut.pre_tokenize_str(text))
    pieces = unigram.train(
        {word.encode("utf-8"): count for word, count in counts.items()},
        num_pieces=recipe.vocabulary - len(recipe.special_tokens),
        min_count=recipe.min_frequency,
    )
    signs = {value: sign for sign, value in byte_values().items()}
    scores = {"".join(signs[value] for value in piece): score for piece, score in pieces}
    special = dict.fromkeys(recipe.special_tokens, NEVER)  # they come first and replace pieces that look the same
    tokenizer = Tokenizer(models.Unigram(list((special | scores | special).items())))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(recipe.special_tokens))
    return tokenizer


def adopted_files(item: InputArtifact) -> tuple[str, dict[str, Any]]:
    """Return the two files of an adopted model's tokenizer, without its maximum length.

    They are the content of `tokenizer.json` and of `tokenizer_config.json`.
    """
    content = item.file(f"model/{TOKENIZER_FILE}").read_text("utf-8")
    config = json.loads(item.file(f"model/{CONFIG_FILE}").read_text("utf-8"))
    return content, config | {"model_max_length": NO_LIMIT}


def adopted_alone(job: Job) -> Vocabulary:
    """Return the tokenizer that a recipe adopts without a model. Raise RefusedInput if its files have changed."""
    folder, special = (
        Path(job.settings["adopted"]["path"]),
        job.settings_as(TokenizerRecipe, "tokenizer").special_tokens,
    )
    if tokenizer_digest(folder) != job.settings["adopted"]["digest"]:
        raise RefusedInput(f"{folder}: the tokenizer has changed since the job was written; run again")
    return read_vocabulary(folder, special)


def provenance(job: Job, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return what is known, what is unknown, and what was changed of a tokenizer that is adopted without a model."""
    stated = job.settings["adopted"]
    folder = Path(stated["path"])
    return {
        **{name: stated[name] or "not stated" for name in ("name", "revision", "licence")},
        "digest": stated["digest"],
        "files": manifest(folder, [name for name in TOKENIZER_FILES if (folder / name).is_file()]),
        "not_known": ["the texts that it was trained on"],
        "changes": list(vocabulary.changes),
    }


def tokenizer_config(recipe: TokenizerRecipe) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, which transformers needs beside `tokenizer.json`."""
    end, pad = recipe.special_tokens[:2]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
        "model_max_length": NO_LIMIT,
    }


# The stage


def choose_in_file(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Choose the documents of one file that may be in the sample."""
    recipe = job.settings_as(TokenizerRecipe, "tokenizer")
    choice = Choice.of(sample_files(job, recipe)[rank], recipe)
    path = _choice_path(work, rank)
    choice.save(path)
    names = [str(path.with_suffix(ending).relative_to(work.path)) for ending in ENDINGS]
    return {"files": names, "documents": choice.documents}


def _choice_path(work: Work, rank: int) -> Path:
    return work.scratch / "sample" / f"{rank:05d}"


PHASES = (
    Phase(
        name="sample",
        num_ranks=lambda job: len(sample_files(job, job.settings_as(TokenizerRecipe, "tokenizer"))),
        run_rank=choose_in_file,
    ),
)


def finish(job: Job, work: Work, results: Mapping[str, list[dict[str, Any]]]) -> Outcome:
    """Train a tokenizer on the documents chosen among those of all ranks, write it, and check the written files."""
    recipe, model = job.settings_as(TokenizerRecipe, "tokenizer"), job.inputs_of("adopted_model")
    is_adopted, files = bool(model) or "adopted" in job.settings, [TOKENIZER_FILE, CONFIG_FILE]
    found = [result["documents"] for result in results["sample"]]
    sample = TokenizerSample.among(
        sample_files(job, recipe), lambda rank: Choice.load(_choice_path(work, rank), found[rank]), recipe
    )
    sample = sample.only_held_out() if is_adopted else sample
    work.progress.log(step=0, training_bytes=sample.train_bytes)
    texts = Counted(sample.training_texts())
    if model:
        content, config = adopted_files(model[0])
    elif is_adopted:
        vocabulary = adopted_alone(job)
        content = json.dumps(vocabulary.tokenizer, ensure_ascii=False)
        config = vocabulary.config | {"model_max_length": NO_LIMIT}
        write_json(work.path / PROVENANCE_FILE, provenance(job, vocabulary))
        files.append(PROVENANCE_FILE)
    else:
        content, config = train(texts, recipe).to_str(pretty=False), tokenizer_config(recipe)
    write_text(work.path / TOKENIZER_FILE, content)
    write_json(work.path / CONFIG_FILE, config)
    tokenizer = load_tokenizer(work.path / TOKENIZER_FILE)
    rows = sample.held_out_rows()
    held_out = [row["text"] for row in rows]
    fertility = measure(tokenizer, held_out)
    return Outcome(
        files=tuple(files),
        counts=_counts(sample, texts.number),
        metrics={
            "vocabulary": tokenizer.get_vocab_size(),
            "training_bytes": sample.train_bytes,
            "documents": sample.documents,
            "held_out_documents": len(held_out),
            **fertility,
        },
        gates=(
            _all_bytes_gate(tokenizer),
            _round_trip_gate(tokenizer, held_out, recipe, is_adopted=is_adopted),
            Gate(
                name="fertility",
                passed=fertility["bytes_per_token"] >= recipe.min_bytes_per_token,
                evidence={
                    "bytes_per_token": round(fertility["bytes_per_token"], 4),
                    "min_bytes_per_token": recipe.min_bytes_per_token,
                },
            ),
        ),
        notes={
            "tokenizer_sha256": sha256_of(work.path / TOKENIZER_FILE),
            "special_tokens": {token: tokenizer.token_to_id(token) for token in recipe.special_tokens},
            "fertility": fertility_table(tokenizer, reference_of(job, recipe), rows),
            **({"study": study(tokenizer, sample, recipe, recipe.study)} if recipe.study else {}),
        },
    )


def _counts(sample: TokenizerSample, trained: int) -> Counts:
    """The stage's counts of documents: all documents of the snapshots are read; those trained on or held out are kept.

    A single document is both trained on and held out.
    """
    return Counts(
        records_in=sample.documents,
        kept=trained + sample.measured_alone,
        dropped={"not_sampled": sample.unused} if sample.unused else {},
    )


def sample_files(job: Job, recipe: TokenizerRecipe) -> Sequence[Path]:
    """Return the document files of the snapshots that the recipe names, in the recipe's order."""
    inputs = {item.partition.partition("@")[2]: item for item in job.inputs_of("decontaminated_documents")}
    missing = [name for name in recipe.snapshots if name not in inputs]
    if missing:
        raise DataError(f"tokenizer.snapshots: {missing[0]!r} is not among the inputs {', '.join(inputs)}")
    return JoinedFiles([document_files(inputs[name]) for name in recipe.snapshots])


def measure(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, float]:
    """Return a tokenizer's fertility over texts: UTF-8 bytes per token, and tokens per word."""
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))
    num_bytes = sum(len(text.encode("utf-8")) for text in texts)
    return {
        "bytes_per_token": num_bytes / max(tokens, 1),
        "tokens_per_word": tokens / max(sum(len(words(text)) for text in texts), 1),
    }


def fertility_table(
    tokenizer: Tokenizer, reference: Tokenizer | None, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the fertility over all held-out documents, by language and by source; largest groups come first.

    Each row also has the reference's fertility, if there is a reference. Sources are listed only if there are several.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for key in (("all", ""), ("language", row["language"] or "unknown"), ("source", row["source"])):
            groups.setdefault(key, []).append(row["text"])
    if sum(kind == "source" for kind, _ in groups) == 1:
        groups = {key: texts for key, texts in groups.items() if key[0] != "source"}
    table = []
    for (kind, name), texts in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1]), group[0][1])):
        entry: dict[str, Any] = {"of": kind, "name": name, "documents": len(texts), **measure(tokenizer, texts)}
        if reference is not None:
            entry["reference"] = measure(reference, texts)
        table.append(entry)
    return table


def study(
    tokenizer: Tokenizer, sample: TokenizerSample, recipe: TokenizerRecipe, sizes: Iterable[int]
) -> list[dict[str, float]]:
    """Return what other vocabulary sizes would give: the fertility over all held-out documents, smallest size first.

    Each size is trained on the same sample. The recipe's own vocabulary is included. `pieces` may be below the size,
    because a sample has a limited number of pieces.
    """
    held_out = [row["text"] for row in sample.held_out_rows()]
    table = []
    for size in sorted({*sizes, recipe.vocabulary}):
        is_own = size == recipe.vocabulary
        made = tokenizer if is_own else _plain(train(sample.training_texts(), replace(recipe, vocabulary=size)))
        table.append({"vocabulary": size, "pieces": made.get_vocab_size(), **measure(made, held_out)})
    return table


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer changed so that it never encodes text as a special token.

    The result equals what `load_tokenizer` loads.
    """
    return Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "added_tokens": []}))


def reference_of(job: Job, recipe: TokenizerRecipe) -> Tokenizer | None:
    """Return the tokenizer whose fertility is shown for comparison; None if the recipe names none.

    Raise DataError if its file is not the one for which the job was written.
    """
    if not recipe.reference:
        return None
    with open_uri(recipe.reference) as stream:
        content = stream.read()
    expected = job.settings.get("data", {}).get(recipe.reference)
    if expected and hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"{recipe.reference}: changed since the job was written; run again")
    try:
        return Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{recipe.reference}: not a tokenizer.json: {error}") from None


def _all_bytes_gate(tokenizer: Tokenizer) -> Gate:
    """Check that every byte has its own token, so that every text can be encoded."""
    missing = sorted(sign for sign in pre_tokenizers.ByteLevel.alphabet() if tokenizer.token_to_id(sign) is None)
    return Gate(name="all_bytes", passed=not missing, evidence={"bytes": 256 - len(missing), "missing": missing})


def _round_trip_gate(
    tokenizer: Tokenizer, held_out: Sequence[str], recipe: TokenizerRecipe, *, is_adopted: bool
) -> Gate:
    """Check that texts are restored exactly and never contain a special token, even if they spell one.

    A trained tokenizer has its special tokens first; an adopted one has them wherever they are.
    """
    texts = [*held_out, *HARD_STRINGS, *look_alikes(recipe.special_tokens), every_byte()]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    decoded = tokenizer.decode_batch([encoding.ids for encoding in encoded], skip_special_tokens=False)
    numbers = [tokenizer.token_to_id(token) for token in recipe.special_tokens]
    special = {number for number in numbers if number is not None}
    changed = [text for text, back in zip(texts, decoded, strict=True) if text != back]
    controlled = [text for text, encoding in zip(texts, encoded, strict=True) if special & set(encoding.ids)]
    expected = sorted(special) if is_adopted else list(range(len(recipe.special_tokens)))
    return Gate(
        name="round_trip",
        passed=not changed and not controlled and sorted(special) == expected and None not in numbers,
        evidence={
            "texts": len(texts),
            "changed": [text[:200] for text in changed[:5]],
            "with_special_tokens": [text[:200] for text in controlled[:5]],
            "special_ids": sorted(special),
        },
    )


def look_alikes(special_tokens: Sequence[str]) -> list[str]:
    """Return texts that spell special tokens, to test that they are encoded as plain text.

    Each token appears alone, between words, doubled, and split in two.
    """
    forms = ("{0}", "before{0}after", " {0} {0}\n", "{1} {2}")
    return [form.format(token, token[:3], token[3:]) for token in special_tokens for form in forms]


def every_byte() -> str:
    """Return a text whose UTF-8 encoding contains every byte that UTF-8 can contain."""
    low = "".join(map(chr, range(0x800)))
    high = "".join(chr(code) for code in range(0x800, 0x110000, 0x3F1) if not 0xD800 <= code < 0xE000)
    return low + high + "\U0010ffff"

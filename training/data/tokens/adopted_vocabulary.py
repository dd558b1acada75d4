"""The tokenizer of an adopted model, in the form that the stages after it read.

Tokens keep their ids. Five things are changed, and listed in the provenance record:

- special tokens of the recipe that the tokenizer lacks get the next ids, because the chat template needs them;
- those that it has are matched as they stand, because a flag may let them take the spaces beside them;
- all special tokens also are entries of the vocabulary, so that their ids are known when added tokens are left out;
- a normalization to NFC is left out, because every text must be restored exactly (but for ▁ in one of pieces);
- no special token is put before a text: plans and the chat template put them where they belong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from training.contract.job import DataError
from training.data.tokens.tokenizer_settings import OF_CALLS

TEXTS = ("naïve \u00a0\t12 日本 \x07", " 1\n")  # which a tokenizer must restore
_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """A tokenizer to write: its two files as plain data, the id of its end of text, and the tokens that are new.

    `spelled` holds, for each new token, its id and the ids of the tokens that spell it.
    """

    tokenizer: dict[str, Any]
    config: dict[str, Any]
    eos_id: int
    size: int  # largest id + 1
    spelled: dict[int, list[int]]
    changes: tuple[str, ...]


def read_vocabulary(folder: Path, special_tokens: Sequence[str], *, has_corpus: bool = True) -> Vocabulary:
    """Return a model folder's tokenizer with the recipe's special tokens added; the second one is for padding.

    Raise DataError if the tokenizer is not a byte-level BPE, or has no token that ends a text. Without a corpus it may
    be a BPE of pieces with ▁ for a space, as Gemma has it.
    """
    data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    of_calls = [name for name in OF_CALLS if data.get(name)]
    changes = [f"the {name} of texts was left out" for name in of_calls]
    data |= dict.fromkeys(of_calls)
    library = Tokenizer.from_str(json.dumps(data))
    data["model"].setdefault("type", type(library.model).__name__)  # which files of old versions lack
    has_pieces = _has_pieces(data)
    _check_restores(folder, data, library, may_have_pieces=not has_corpus)
    if data.get("normalizer") and not has_pieces:
        data["normalizer"], changes = None, [*changes, "the normalization to NFC was left out"]
    if library.num_special_tokens_to_add(False):
        data["post_processor"], changes = None, [*changes, "no special token is put before or after a text"]
    known = data["model"]["vocab"] | {token["content"]: token["id"] for token in data.get("added_tokens", [])}
    end, begin = _special(folder, known, "eos_token"), _special(folder, known, "bos_token", required=False)
    new = {token: number for number, token in enumerate(_missing(special_tokens, known), max(known.values()) + 1)}
    spelled = {number: library.encode(token, add_special_tokens=False).ids for token, number in new.items()}
    if new:
        changes.append(f"tokens were added: {', '.join(new)}; each begins as the mean of the tokens that spell it")
    had = data.get("added_tokens", [])
    kept = [one | _PLAIN if one["content"] in special_tokens else one for one in had]
    if kept != had:
        changes.append("special tokens of the recipe are matched as they stand, without spaces beside them")
    data["added_tokens"] = [
        *kept,
        *({"id": number, "content": token, **_PLAIN} for token, number in new.items()),
    ]
    data["model"]["vocab"] |= {token["content"]: token["id"] for token in data["added_tokens"] if token["special"]}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin or end,
        "eos_token": end,
        "pad_token": special_tokens[1],
        "clean_up_tokenization_spaces": False,
    }
    size = max((known | new).values()) + 1
    return Vocabulary(
        tokenizer=data, config=config, eos_id=known[end], size=size, spelled=spelled, changes=tuple(changes)
    )


def _missing(special_tokens: Sequence[str], known: dict[str, int]) -> list[str]:
    return [token for token in special_tokens if token not in known]


def _has_pieces(data: dict[str, Any]) -> bool:
    """Whether a tokenizer is a BPE of pieces, in which ▁ stands for a space and what has no piece is spelled in bytes.

    Of texts it changes nothing but the sign ▁, which becomes a space.
    """
    normalizer = data.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer] if normalizer else [])
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    is_plain = all(step == spaces or step == {"type": "Prepend", "prepend": "▁"} for step in steps)
    return bool(data["model"]["type"] == "BPE" and data["model"].get("byte_fallback") and is_plain)


def _check_restores(folder: Path, data: dict[str, Any], library: Tokenizer, *, may_have_pieces: bool) -> None:
    """Raise DataError unless the tokenizer encodes every byte and decodes every text without change."""
    model, normalizer = data["model"]["type"], (data.get("normalizer") or {}).get("type", "NFC")
    parts = json.dumps([data.get("pre_tokenizer"), data.get("decoder")])
    has_bytes = parts.count('"ByteLevel"') >= 2 and not data["model"].get("byte_fallback") and normalizer == "NFC"
    if not (model == "BPE" and has_bytes) and not (may_have_pieces and _has_pieces(data)):
        others = "; without snapshots also one of pieces, as Gemma and Phi-3 have it"
        raise DataError(
            f"{folder}: tokenizer.json: {model} that is not byte-level, or changes texts; only byte-level BPE can be"
            f" adopted, as Llama 3, Qwen3 and SmolLM2 have it{others}"
        )
    for text in TEXTS:
        if library.decode(library.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) != text:
            raise DataError(f"{folder}: tokenizer.json: does not restore the text {text!r}")


def _special(folder: Path, known: dict[str, int], role: str, *, required: bool = True) -> str:
    """Return the special token that `tokenizer_config.json` or `config.json` names for a role such as `eos_token`."""
    path = folder / "tokenizer_config.json"
    token = json.loads(path.read_text("utf-8")).get(role) if path.is_file() else None
    token = token.get("content") if isinstance(token, dict) else token
    if token is None:
        number = json.loads((folder / "config.json").read_text("utf-8")).get(f"{role}_id")
        number = number[0] if isinstance(number, list) else number
        token = next((content for content, id_ in known.items() if id_ == number), None)
    if token in known:
        return str(token)
    if required:
        raise DataError(f"{folder}: neither tokenizer_config.json nor config.json names a {role} of the vocabulary")
    return ""

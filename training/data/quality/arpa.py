"""Read and write n-gram models as ARPA files, the format of KenLM and SRILM.

    python -m training.data.quality.arpa ARTIFACT OUT.arpa [--language en]

writes the model of a `quality_models` artifact. Logarithms are to base 10 and have nine digits, which is enough for
`read_arpa` to restore exactly the same model. KenLM gives the same probabilities for such a file as the model does
(docs/filters.md has the figures); its input must be each line's words, as of `training.data.quality.forms.words_of`,
joined by spaces.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from training.contract.job import DataError
from training.data.quality.perplexity import END, START, UNKNOWN, WORD_BITS, NgramModel, file_of, found

LOG_10 = float.fromhex("0x1.26bb1bbb55516p+1")  # the natural logarithm of 10
_FIELD = re.compile(r"[ \t]+")  # not white space of any kind: a no-break space may be part of a word
_ABSENT = -100.0  # KenLM's log probability (base 10) of an unknown word in a file without <unk>


def write_arpa(model: NgramModel, stream: IO[str]) -> None:
    """Write the model as an ARPA file. Raise DataError for a word that the format cannot represent."""
    sizes = [len(values) for values in model.log_probability]
    stream.write("\\data\\\n" + "".join(f"ngram {k}={size}\n" for k, size in enumerate(sizes, 1)))
    words = list(model.vocabulary)
    for word in words:
        _check_word(word)
    texts = words
    for k in range(1, model.order + 1):
        if k > 1:
            contexts, last = model.keys[k - 1] >> np.uint64(WORD_BITS), model.keys[k - 1] & np.uint64(2**WORD_BITS - 1)
            texts = [f"{texts[a]} {words[b]}" for a, b in zip(contexts.tolist(), last.tolist(), strict=True)]
        stream.write(f"\n\\{k}-grams:\n")
        stream.writelines(_lines(model, k, texts))
    stream.write("\n\\end\\\n")


def _check_word(word: str) -> None:
    """Raise DataError for a word with a NUL, which ends a word in KenLM, or with half a surrogate pair (no UTF-8)."""
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"ARPA: the word {word!r} is no UTF-8") from None
    if "\0" in word:
        raise DataError(f"ARPA: the word {word!r} has a NUL in it, which separates words there")


def _lines(model: NgramModel, k: int, texts: list[str]) -> Iterator[str]:
    """Yield one line of the ARPA file for each k-gram. The longest n-grams have no backoff column."""
    probabilities = (model.log_probability[k - 1].astype(np.float64) / LOG_10).tolist()
    if k == model.order:
        return (f"{value:.9g}\t{text}\n" for value, text in zip(probabilities, texts, strict=True))
    backoffs = (model.log_backoff[k - 1].astype(np.float64) / LOG_10).tolist()
    return (
        f"{value:.9g}\t{text}\t{backoff:.9g}\n"
        for value, text, backoff in zip(probabilities, texts, backoffs, strict=True)
    )


def read_arpa(lines: Iterable[str], name: str) -> NgramModel:
    """Return the model of an ARPA file, given its lines. DataError messages name the file `name`.

    The model is queried with the words of `training.data.quality.forms`: lower case, digits as 0, signs as separate
    words. If the model's words were cut in another way, most words of a text are unknown to it.
    """
    vocabulary: dict[str, int] = {START: 0, END: 1, UNKNOWN: 2}
    keys: list[np.ndarray] = []
    columns: list[tuple[np.ndarray, np.ndarray]] = []
    for k, entries in enumerate(_sections(lines, name), 1):
        values = np.array([entry[:2] for entry in entries], dtype=np.float64).reshape(-1, 2) * LOG_10
        if k == 1:
            for _, _, (word,) in entries:
                vocabulary.setdefault(word, len(vocabulary))
        try:
            ids = np.array([[vocabulary[word] for word in words] for *_, words in entries], dtype=np.int64)
        except KeyError as error:
            raise DataError(f"{name}: {error} stands in a {k}-gram and is no 1-gram") from None
        order_keys = _keys(ids.reshape(-1, k), keys, name)
        place = np.argsort(order_keys, kind="stable")
        if k == 1:
            keys.append(np.zeros(0, np.uint64))
            columns.append(_of_words(ids.reshape(-1), values, len(vocabulary)))
        else:
            keys.append(order_keys[place])
            columns.append((values[place, 0].astype(np.float32), values[place, 1].astype(np.float32)))
    return NgramModel(
        vocabulary=vocabulary,
        keys=tuple(keys),
        log_probability=tuple(column[0] for column in columns),
        log_backoff=tuple(column[1] for column in columns),
    )


def _sections(lines: Iterable[str], name: str) -> Iterator[list[tuple[float, float, tuple[str, ...]]]]:
    """Yield the n-grams of each order: base-10 logarithms of probability and backoff (0 if absent), and the words."""
    order, entries, is_open = 0, [], False
    for number, raw in enumerate(lines, 1):
        line = raw.strip(" \t\r\n")
        if line == f"\\{order + 1}-grams:" or line == "\\end\\":
            if is_open:
                yield entries
            order, entries, is_open = order + 1, [], True
            if line == "\\end\\":
                return
        elif is_open and line:
            fields = _FIELD.split(line)
            try:
                rest = [float(field) for field in (fields[0], *fields[1 + order :])]
            except ValueError:
                rest = []
            if len(fields) < 1 + order or not 1 <= len(rest) <= 2:
                raise DataError(f"{name}: line {number} is no {order}-gram of an ARPA file: {line[:80]!r}")
            entries.append((rest[0], rest[1] if len(rest) == 2 else 0.0, tuple(fields[1 : 1 + order])))
    raise DataError(f"{name}: no ARPA file, or one that ends before \\end\\")


def _keys(ids: np.ndarray, shorter: list[np.ndarray], name: str) -> np.ndarray:
    """Return the keys of the n-grams `ids` [n, k], uint64 [n]. The first k - 1 words of each must be in the model."""
    keys = nodes = ids[:, 0]
    for k in range(1, ids.shape[1]):
        keys = (nodes.astype(np.uint64) << np.uint64(WORD_BITS)) | ids[:, k].astype(np.uint64)
        if k + 1 < ids.shape[1]:
            nodes = found(keys, np.ones(len(keys), np.bool_), shorter[k])
            if len(nodes) and nodes.min() < 0:
                raise DataError(f"{name}: a {ids.shape[1]}-gram whose first {k + 1} words are no {k + 1}-gram of it")
    return keys


def _of_words(ids: np.ndarray, values: np.ndarray, num_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the log probability and the log backoff weight of each word.

    `<s>` gets probability 1, because it is never queried.
    """
    probability = np.full(num_words, _ABSENT * LOG_10)
    backoff = np.zeros(num_words)
    probability[ids], backoff[ids] = values[:, 0], values[:, 1]
    probability[0] = 0.0
    return probability.astype(np.float32), backoff.astype(np.float32)


def main() -> None:
    """Write the ARPA file of an artifact's model."""
    from training.contract.artifact import written

    parser = argparse.ArgumentParser(description="Write an n-gram model of quality_models as an ARPA file.")
    parser.add_argument("artifact", type=Path, help="folder of a quality_models artifact")
    parser.add_argument("out", type=Path)
    parser.add_argument("--language", default="", help="of quality.ngram_languages; without: the one model for all")
    options = parser.parse_args()
    model = NgramModel.load(options.artifact, file_of(options.language))
    with written(options.out, "w") as stream:
        write_arpa(model, stream)


if __name__ == "__main__":
    main()

"""Compare the speed of the search for exam items with other tools, on the same texts.

The figures are in docs/decontamination.md.

    PEDIGREE_DATA=… python -m benchmarks.contamination speed [--peers FOLDER]
    PEDIGREE_DATA=… python -m benchmarks.contamination stage

The exams are all strings of the benchmark files in the shared data. One text in a hundred contains one of them word for
word, and another one in a hundred contains one with its middle word changed. Times are processor seconds on one core.
benchmarks.contamination_recall measures what the rule finds and what it marks wrongly.

lm-eval's Janitor has a helper in C++ that is not in its package. `--peers` names a folder with this helper, built as
the README of lm-eval's `scripts/clean_training_data` describes; Janitor with its helper is then measured too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

# One core for everybody, before numpy is loaded.
os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import numpy as np
import pyarrow as pa

from benchmarks.dedup import made_texts, processor_seconds, scratch
from tests.training.data import chain
from training.data.documents import DocumentWriter, document_files, read_tables, utf8_of
from training.data.exams.benchmarks import read_items
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.gram_loops import looked_up
from training.data.exams.grams import GramTable
from training.data.exams.item_rule import Finder, ItemText, build_items
from training.data.exams.settings import BenchmarkRecipe
from training.data.sources import read_rows, resolve
from training.data.words import ngrams
from training.data.words.hashes import hash_words

ROUNDS = 5
PLANTED = 0.01  # of the texts, each way
CHANGE: Final = "qqq"
BATCH = 1000
EXAMS = (
    BenchmarkRecipe(name="gsm8k", uri="data://benchmarks/gsm8k_test.jsonl.gz", kind="generate"),
    BenchmarkRecipe(
        name="arc_easy", uri="data://benchmarks/arc_easy.jsonl.gz", kind="multiple_choice", question_field="query"
    ),
    BenchmarkRecipe(
        name="mmlu", uri="data://benchmarks/mmlu_val.jsonl.gz", kind="multiple_choice", gold_field="answer"
    ),
)


# Texts and exams


def exam_strings() -> list[str]:
    """Return every different string of all benchmark files."""
    found: dict[str, None] = {}
    for path in sorted(Path(resolve("data://benchmarks")).glob("*.jsonl.gz")):
        for row in read_rows(str(path)):
            found.update(dict.fromkeys(_strings(row)))
    return list(found)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for one in value.values() for text in _strings(one))
    elif isinstance(value, list):
        yield from (text for one in value for text in _strings(one))


def planted_texts(number: int, plants: list[str], seed: int = 0) -> tuple[list[str], set[int], set[int]]:
    """Return texts, the indices of those with a planted string, and of those with one whose middle word is changed."""
    texts, _ = made_texts(number)
    generator = random.Random(seed)
    chosen = generator.sample(range(number), 2 * round(PLANTED * number))
    verbatim, edited = set(chosen[::2]), set(chosen[1::2])
    for place in chosen:
        words = generator.choice(plants).split()
        if place in edited:
            words[len(words) // 2] = CHANGE
        cut = texts[place].find(" ", generator.randrange(len(texts[place]) // 2))
        texts[place] = f"{texts[place][:cut]} {' '.join(words)} {texts[place][cut:]}"
    return texts, verbatim, edited


# Systems. Each is built from the exams' strings and gives, for texts, the numbers of those that hold one. Runs of words
# tell the (text, first word) of every n-gram that they share with the exams.


def ours(exams: list[str], length: int) -> Callable[[pa.StringArray], set[int]]:
    """Return this project's search, as in decontamination; every string counts as a question without an answer.

    The search returns the indices of the texts in which an item was found.
    """
    del length
    items = [ItemText(benchmark="exams", id=str(number), question=text) for number, text in enumerate(exams)]
    finder = Finder(build_items(items), compiled_from_bytes=0)

    def run(column: pa.StringArray) -> set[int]:
        return {
            start + place
            for start in range(0, len(column), BATCH)
            for place, _ in finder.find(column[start : start + BATCH])
        }

    return run


def runs(exams: list[str], length: int) -> Callable[[pa.StringArray], set[tuple[int, int]]]:
    """Return a compiled search for equal runs of `length` words, which was this project's rule before."""
    hashes = [ngrams.ngram_hashes(ngrams.word_hashes(text), length) for text in exams]
    table = GramTable.of(length, np.unique(np.concatenate(hashes)))

    def run(column: pa.StringArray) -> set[tuple[int, int]]:
        found = set()
        for start in range(0, len(column), BATCH):
            words, starts = hash_words(*utf8_of(column[start : start + BATCH]))
            places = looked_up(words, starts, table)
            found.update((start + text, position) for text, position, _ in places.tolist())
        return found

    return run


def plain_set(exams: list[str], length: int) -> Callable[[pa.StringArray], set[tuple[int, int]]]:
    """Return a search for equal runs of words by a Python set of joined words, with the same definition of words."""
    indexed = {" ".join(words[i : i + length]) for words in map(_words, exams) for i in range(len(words) - length + 1)}

    def run(column: pa.StringArray) -> set[tuple[int, int]]:
        found = set()
        for place, text in enumerate(column.to_pylist()):
            words = _words(text)
            for position in range(len(words) - length + 1):
                if " ".join(words[position : position + length]) in indexed:
                    found.add((place, position))
        return found

    return run


_ASCII = re.compile("[a-z0-9]+(?:'[a-z0-9]+)*")


def _words(text: str) -> list[str]:
    """Return the words of a text like `ngrams.words`, in the fastest plain Python."""
    if not text.isascii():
        found = ngrams._WORD.findall(text)
        return [word.lower() if word.isascii() and "'" not in word else ngrams.normalized_word(word) for word in found]
    found = _ASCII.findall(text.lower())
    return [word.replace("'", "") for word in found] if "'" in text else found


def janitor(exams: list[str], length: int) -> Callable[[pa.StringArray], set[int]]:
    """Return the search of lm-eval's Janitor, in Python."""
    made = _janitor(length)
    for text in exams:
        made.register_contaminant_python(text)
    return _cut_by(made, made.clean_python)


def janitor_helped(exams: list[str], length: int) -> Callable[[pa.StringArray], set[int]]:
    """Return the search of lm-eval's Janitor with its helper in C++, for ASCII characters only.

    For other characters the helper returns pieces that are not UTF-8. Janitor's own `clean_cpp` (0.4.13) cuts every
    n-gram out of a text, also those in no exam, so the n-grams are looked up here.
    """
    import janitor_util

    made = _janitor(length)
    for text in exams:
        made.register_contaminant_cpp(_ascii(text))

    def clean(text: str) -> list[str]:
        grams = janitor_util.clean_ngram_with_indices(text, made.delete_chars, length)
        return made._split_chunks(text, [gram for gram in grams if gram[0] in made.dirt_ngrams])

    run = _cut_by(made, clean)
    return lambda column: run(pa.array(map(_ascii, column.to_pylist()), pa.string()))


def _ascii(text: str) -> str:
    return text if text.isascii() else text.encode("ascii", "ignore").decode()


def _janitor(length: int) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from lm_eval.decontamination.janitor import Janitor
    return Janitor(ngram_n=length)


def _cut_by(made: Any, clean: Callable[[str], list[str]]) -> Callable[[pa.StringArray], set[int]]:
    # A text without a hit comes back whole, less what stands before its first 200 characters' end.
    return lambda column: {
        place for place, text in enumerate(column.to_pylist()) if clean(text) != made._split_chunks(text, [])
    }


# Parts


def speed(options: argparse.Namespace) -> None:
    """Print megabytes of text per processor second of each system, and whether both searches for runs find the same."""
    exams = exam_strings()
    plants = [text for text in exams if 20 <= len(text.split()) <= 80]
    texts, verbatim, edited = planted_texts(round(options.megabytes * 1e6 / 3300), plants)
    column = pa.array(texts)
    size = sum(len(text.encode()) for text in texts) / 1e6
    systems: dict[str, Any] = {}
    builders: dict[str, Any] = {"ours": ours, "runs": runs, "plain set": plain_set, "Janitor": janitor}
    if options.peers:
        sys.path.append(options.peers)  # before lm-eval looks whether it is there
        builders["Janitor with its C++ helper"] = janitor_helped
    for name, build in builders.items():
        began = processor_seconds()
        systems[name] = build(exams, options.length)
        print(f"{name}: built from {len(exams)} strings in {processor_seconds() - began:.1f} s")
    systems["ours"](column[:10])  # loads the compiled loops
    rates: dict[str, list[float]] = {name: [] for name in systems}
    hits: dict[str, Any] = {}
    for _ in range(options.rounds):
        for name, run in systems.items():
            began = processor_seconds()
            hits[name] = run(column)
            rates[name].append(size / (processor_seconds() - began))
    print(f"{len(texts)} texts, {size:.1f} MB, {options.length}-grams, n = {options.rounds}")
    print("runs and the plain set have the same hits:", hits["runs"] == hits["plain set"], len(hits["runs"]))
    for name, values in rates.items():
        marked = {hit[0] if isinstance(hit, tuple) else hit for hit in hits[name]}
        ratio = statistics.median(own / one for own, one in zip(rates["ours"], values, strict=True))
        print(
            f"{name}: {statistics.median(values):.1f} [{min(values):.1f}-{max(values):.1f}] MB/s,"
            f" ours / it {ratio:.1f}; verbatim {_share(marked, verbatim):.3f}, edited {_share(marked, edited):.3f},"
            f" others {len(marked - verbatim - edited)}"
        )


def _share(found: set[int], of: set[int]) -> float:
    return len(found & of) / len(of)


def stage(options: argparse.Namespace) -> None:
    """Print megabytes per processor second of the whole stage `decontaminate` over one file.

    Reading and writing are included.
    """
    items = [read_items(exam) for exam in EXAMS]
    plants = [f"{item.question} {item.answer}" for some in items for item in some]
    texts, _, _ = planted_texts(round(options.megabytes * 1e6 / 3300), plants)
    size = sum(len(text.encode()) for text in texts) / 1e6
    Finder.COMPILED_FROM_BYTES = 0
    ours(texts[:2], 8)(pa.array(texts[:2]))  # loads the compiled loops
    settings = {"decontaminate": DecontaminateRecipe(benchmarks=EXAMS)}
    seconds = []
    for _ in range(options.rounds):
        with scratch() as root:
            source = chain.documents(root, "one", [texts], asset="deduplicated_documents")
            index = chain.run(root, "benchmarks", "benchmark_index", "tiny", settings)
            began = processor_seconds()
            made = chain.run(root, "decontaminate", "decontaminated_documents", "tiny@one", settings, [source, index])
            middle = processor_seconds()
            counts = made.record()["counts"]
            with DocumentWriter(root / "again.parquet") as writer:
                for table in read_tables(document_files(source)[0]):
                    writer.write_table(table)
            seconds.append((middle - began, processor_seconds() - middle))
    for place, what in enumerate(("the stage", "reading and writing the file alone")):
        values = [size / one[place] for one in seconds]
        print(f"{what}: {statistics.median(values):.1f} [{min(values):.1f}-{max(values):.1f}] MB/s")
    print(counts)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"speed": speed, "stage": stage}


def main() -> None:
    """Run the parts of the benchmark that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--megabytes", type=float, default=10, help="of text")
    parser.add_argument("--length", type=int, default=13, help="words of a run, for speed")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", default="", help="folder with Janitor's compiled helper, for speed")
    options = parser.parse_args()
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()

"""Compare deduplication with other libraries on the same texts in one run: the figures of docs/dedup.md.

    PEDIGREE_DATA=… python -m benchmarks.dedup speed --peers VENV/lib/python3.11/site-packages
    PEDIGREE_DATA=… python -m benchmarks.dedup snapshots
    PEDIGREE_DATA=… python -m benchmarks.dedup substrings --peers …

rensa, datasketch and pydivsufsort are not among the project's packages; `--peers` names a folder that has them. Times
are processor seconds of this process and its children, on one core. `--megabytes` sets the amount of text.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

# One core for everybody, before the peers are loaded.
os.environ.update(RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1", POLARS_MAX_THREADS="1")

import numpy as np
import pyarrow as pa

from benchmarks.rounds import ratios, spread
from tests.training.data import chain
from training.contract.job import InputArtifact
from training.contract.running.phase import Phase
from training.data.dedup import dedup, index
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.dedup.shuffle import SliceFile
from training.data.documents import read_lines, write_lines
from training.data.sources import read_rows, resolve
from training.data.words.ngrams import jaccard, ngram_set

RECIPE = DedupRecipe()
PERTURBED = 0.35  # share of words replaced in paragraphs, so that two documents of one paragraph are strangers
COPIED = 0.19  # share of documents that are a copy of an earlier one with 0.5 to 12 % of its words replaced
ROUNDS = 5


# Texts


def paragraphs() -> list[list[str]]:
    """Return real paragraphs, each as a list of its words."""
    web = (line for row in read_rows("data://text/c4_demo.jsonl.gz") for line in str(row["text"]).split("\n"))
    with gzip.open(resolve("data://text/wikitext-2.valid.txt.gz"), "rt", encoding="utf-8") as lines:
        found = [*web, *lines]
    return [line.split() for line in found if len(line) > 150]


def made_texts(number: int, *, characters: int = 3300, seed: int = 0) -> tuple[list[str], dict[int, int]]:
    """Return `number` generated texts, and for each copy among them the index of the text that it was made from."""
    generator = random.Random(seed)
    sources = paragraphs()
    vocabulary = sorted({word for words in sources for word in words})
    texts: list[str] = []
    origins: dict[int, int] = {}
    while len(texts) < number:
        if texts and generator.random() < COPIED:
            origin = generator.randrange(len(texts))
            words = texts[origin].split(" ")
            changed = max(1, round(len(words) * generator.uniform(0.005, 0.12)))
            origins[len(texts)] = origin
            places = generator.sample(range(len(words)), changed)
        else:
            words = []
            while sum(map(len, words)) + len(words) < characters:
                words += generator.choice(sources)
            words = " ".join(words)[:characters].split(" ")
            places = generator.sample(range(len(words)), round(PERTURBED * len(words)))
        for place in places:
            words[place] = generator.choice(vocabulary)
        texts.append(" ".join(words))
    return texts, origins


def true_duplicates(texts: list[str], origins: dict[int, int]) -> set[int]:
    """Return the texts that are similar enough to an earlier text of the same origin, by comparing all pairs."""
    families: dict[int, list[int]] = {}
    found = set()
    root = {}
    for number in range(len(texts)):
        root[number] = root[origins[number]] if number in origins else number
        families.setdefault(root[number], []).append(number)
    for members in families.values():
        sets = {number: ngram_set(texts[number], RECIPE.ngram_words) for number in members if len(members) > 1}
        for place, number in enumerate(members):
            if any(jaccard(sets[number], sets[other]) >= RECIPE.min_similarity for other in members[:place]):
                found.add(number)
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    """Context manager that gives a temporary folder and removes it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dedup-benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def processor_seconds() -> float:
    """Return user plus system seconds of this process and its ended children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def load_compiled_loops(texts: list[str]) -> None:
    """Load the compiled loops now, and use them for every size of input, as for a large corpus."""
    signatures.COMPILED_FROM_BYTES = 0
    with scratch() as root:
        stages(root, [chain.documents(root, "one", [[*texts[:20], texts[0] + " x"]])])


waited: list[float] = []


@contextmanager
def untimed() -> Iterator[None]:
    """Context manager for work whose processor seconds `speed` does not count."""
    began = processor_seconds()
    yield
    waited.append(processor_seconds() - began)


# Ours, and the peers. Each takes texts and gives the numbers of those it would remove.


def ours_in_memory(texts: list[str], column: pa.StringArray) -> set[int]:
    """Sign and cluster in memory without verification; return every document that shares a key with an earlier one."""
    # A thousand at a time, as the stage reads them.
    parts = [signatures.sign(column[at : at + 1000], RECIPE, compiled=True).bands for at in range(0, len(column), 1000)]
    removed: set[int] = set()
    for keys in np.concatenate(parts, axis=1):
        _, first = np.unique(keys, return_index=True)
        removed.update(np.delete(np.arange(len(keys)), first).tolist())
    return removed


def ours_verified(texts: list[str], _: pa.StringArray) -> set[int]:
    """Run the stages `sign` and `dedup` over files, as in a real run.

    They read, sign, verify, and write kept and dropped documents.
    """
    with scratch() as root:
        with untimed():
            source = chain.documents(root, "one", [texts])
        made = stages(root, [source])[-1]
        with untimed():
            return {row["warc_offset"] // 100 for row in chain.rows(made, "dropped")}


def stages(root: Path, sources: list[InputArtifact], signed: list[InputArtifact] | None = None) -> list[InputArtifact]:
    """Sign and deduplicate the last of the sources; return the artifacts with its signatures and its documents."""
    settings = {"dedup": RECIPE}
    partition = sources[-1].partition
    signatures_made = chain.run(root, "sign", "document_signatures", partition, settings, [sources[-1]])
    inputs = [*sources, *(signed or []), signatures_made]
    return [signatures_made, chain.run(root, "dedup", "deduplicated_documents", partition, settings, inputs)]


def shingles(text: str) -> list[str]:
    """Return the distinct word n-grams of a text for the other libraries, which do not make n-grams themselves."""
    words = text.lower().split()
    return list({" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))})


def clustered(minima: Any) -> set[int]:
    """Return every row of MinHash minima [texts, 112] that shares a band of 8 values with an earlier row."""
    removed: set[int] = set()
    for band in np.split(np.ascontiguousarray(minima), RECIPE.buckets, axis=1):
        rows = np.ascontiguousarray(band).view(np.dtype((np.void, band.dtype.itemsize * band.shape[1]))).ravel()
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        removed.update(np.flatnonzero(first[inverse] < np.arange(len(rows))).tolist())
    return removed


def with_rensa(texts: list[str], _: pa.StringArray) -> set[int]:
    """Find duplicates with rensa's RMinHash, one sketch per document."""
    from rensa import RMinHash

    rows = []
    for text in texts:
        sketch = RMinHash(num_perm=112, seed=1)
        sketch.update(shingles(text))
        rows.append(sketch.digest())
    return clustered(np.array(rows, np.uint32))


def with_rensa_matrix(texts: list[str], _: pa.StringArray) -> set[int]:
    """Find duplicates with rensa's calls for many documents: one matrix of sketches, and rensa's own bands."""
    from rensa import RMinHash, RMinHashLSH

    matrix = RMinHash.digest_matrix_from_token_sets([shingles(text) for text in texts], 112, 1)
    flags = RMinHashLSH(threshold=0.7, num_perm=112, num_bands=14).query_duplicate_flags_matrix_one_shot(matrix)
    return set(np.flatnonzero(flags).tolist())  # the first of a group too


def with_datasketch(texts: list[str], _: pa.StringArray) -> set[int]:
    """Find duplicates with datasketch's MinHash.bulk, and bands in numpy, which is faster than datasketch's index."""
    from datasketch import MinHash

    sketches = MinHash.bulk([[s.encode() for s in shingles(text)] for text in texts], num_perm=112)
    return clustered(np.array([sketch.hashvalues for sketch in sketches]))


def with_datatrove(texts: list[str], _: pa.StringArray) -> set[int]:
    """Find duplicates with datatrove's four MinHash stages over files, with one worker."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    config = minhash.MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    with scratch() as root:
        (root / "in").mkdir()
        write_lines(root / "in" / "0.jsonl", ({"id": str(i), "text": text} for i, text in enumerate(texts)))
        at = {name: str(root / name) for name in ("in", "signatures", "buckets", "removed", "out", "dropped")}
        reader = JsonlReader(at["in"])
        for number, pipeline in enumerate(
            (
                [reader, minhash.MinhashDedupSignature(at["signatures"], config)],
                [minhash.MinhashDedupBuckets(at["signatures"], at["buckets"], config=config)],
                [minhash.MinhashDedupCluster(at["buckets"], at["removed"], config)],
                [reader, minhash.MinhashDedupFilter(at["removed"], JsonlWriter(at["dropped"])), JsonlWriter(at["out"])],
            )
        ):
            tasks = RECIPE.buckets if number == 1 else 1
            LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(root / f"log{number}")).run()
        kept = [row["id"] for path in Path(at["out"]).glob("*") for row in read_lines(path)]
    return set(range(len(texts))) - set(map(int, kept))


RUNNERS: dict[str, Callable[[list[str], pa.StringArray], set[int]]] = {
    "datatrove": with_datatrove,
    "datasketch": with_datasketch,
    "rensa": with_rensa,
    "rensa, bulk": with_rensa_matrix,
    "ours": ours_in_memory,
    "ours, files, verified": ours_verified,
}


# Parts


def speed(options: argparse.Namespace) -> None:
    """Print megabytes of text per processor second of each system, what it removes, and ratios within a round."""
    sys.path.append(options.peers)
    texts, origins = made_texts(round(options.megabytes * 1e6 / 3300))
    similar = true_duplicates(texts, origins)
    print(f"{len(texts)} documents, {len(origins)} copies, {len(similar)} of them similar enough")
    load_compiled_loops(texts)
    rates: dict[str, list[float]] = {name: [] for name in RUNNERS}
    found: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, run in RUNNERS.items():
            given = texts[: len(texts) // 10] if name == "datatrove" else texts
            column = pa.array(given)
            waited.clear()
            began = processor_seconds()
            removed = run(given, column)
            rates[name].append(sum(map(len, given)) / 1e6 / (processor_seconds() - began - sum(waited)))
            expected = {number for number in similar if number < len(given)}
            right = len(removed & expected)
            found[name] = f"precision {right / len(removed):.4f}, recall {right / len(expected):.4f}"
    for name, values in rates.items():
        peers = [f"{peer} {median(ratios(values, rates[peer])):.1f}" for peer in list(RUNNERS)[:4]]
        print(f"{name}: {spread(values, 2)} MB/s; {found[name]}; it ÷ {', '.join(peers)}; n = {ROUNDS}")


def snapshots(options: argparse.Namespace) -> None:
    """Print, for each of some snapshots of equal size, the processor seconds of both stages and of the phases.

    Also prints how many files of earlier snapshots' indexes are opened.
    """
    number = options.documents // options.snapshots
    texts, _ = made_texts(options.snapshots * number)
    load_compiled_loops(texts)
    phases: dict[str, float] = defaultdict(float)
    opened, open_file = Counter[str](), index.opened

    def counted(folder: Path, group: str, kind: str) -> SliceFile:
        opened[kind] += 1
        return open_file(folder, group, kind)

    index.opened = counted
    dedup.PHASES = tuple(replace(phase, run_rank=timed(phase, phases)) for phase in dedup.PHASES)
    with scratch() as root:
        sources, signed = list[InputArtifact](), list[InputArtifact]()
        first = 0.0
        for place in range(options.snapshots):
            own = texts[place * number : (place + 1) * number]
            files = [own[start : start + 2000] for start in range(0, number, 2000)]
            sources.append(chain.documents(root, f"s{place}", files))
            phases.clear()
            opened.clear()
            began = processor_seconds()
            made = stages(root, sources, signed)
            seconds = processor_seconds() - began
            signed.append(made[0])
            first = first or seconds
            shown = ", ".join(f"{name} {took:.3f}" for name, took in phases.items())
            digest = made[1].record()["digest"][:12]
            files = f"opened {opened['keys']} files of keys, {opened['texts']} of texts"
            said = f"{seconds:.2f} s, ÷ first {seconds / first:.2f}; {shown}; {files}; digest {digest}"
            print(f"{place + 1}: {said}", flush=True)


def timed(phase: Phase, spent: dict[str, float]) -> Callable[..., dict[str, Any]]:
    """Return a phase's `run_rank` that adds its processor seconds to `spent`."""

    def run_rank(*arguments: Any) -> dict[str, Any]:
        began = processor_seconds()
        result = phase.run_rank(*arguments)
        spent[phase.name] += processor_seconds() - began
        return result

    return run_rank


def substrings(options: argparse.Namespace) -> None:
    """Print the speed of exact substring search, this project's and by suffix array, in megabytes per processor second.

    Also prints whether both mark the same bytes.
    """
    sys.path.append(options.peers)
    from pydivsufsort import divsufsort, kasai

    from training.data.dedup.substrings import repeats

    texts, _ = made_texts(round(options.megabytes * 1e6 / 3300))
    raw = [text.encode() for text in texts]
    data, offsets = np.frombuffer(b"".join(raw), np.uint8), np.cumsum([0, *map(len, raw)])
    repeats(data[: offsets[2]], offsets[:3], LENGTH)  # loads the compiled loops
    rates: dict[str, list[float]] = {"ours": [], "pydivsufsort, array and LCP": []}
    parted = np.frombuffer(b"\xff".join(raw), np.uint8).copy()  # a byte that UTF-8 has not
    for _ in range(ROUNDS):
        began = processor_seconds()
        covered = repeats(data, offsets, LENGTH, first_too=True)
        middle = processor_seconds()
        order = divsufsort(parted)
        common = kasai(parted, order)
        last = processor_seconds()
        for name, seconds in zip(rates, (middle - began, last - middle), strict=True):
            rates[name].append(len(data) / 1e6 / seconds)
    expected = covered_by_array(order, common, parted)
    print(
        f"{len(data) / 1e6:.1f} MB, {covered.mean():.4f} in a repeat of {LENGTH} bytes; the same as by suffix array:",
        np.array_equal(covered, expected[parted != 0xFF]),
    )
    for name, values in rates.items():
        ratio = median(ratios(values, list(rates.values())[1]))
        print(f"{name}: {spread(values)} MB/s; it ÷ peer {ratio:.1f}")


LENGTH = 100  # bytes of a repeat


def covered_by_array(order: Any, common: Any, parted: Any) -> Any:
    """Return the bytes that lie in a repeated window of LENGTH bytes within one text, computed from a suffix array."""
    enough = np.zeros(len(order) + 1, np.bool_)
    enough[1 : len(common) + 1] = np.asarray(common) >= LENGTH  # common[i] is that of suffixes i and i + 1
    windows = np.zeros(len(order), np.bool_)
    windows[order] = enough[:-1] | enough[1:]
    parts = np.cumsum(np.concatenate([[0], parted == 0xFF]))
    inner = parts[LENGTH:] == parts[:-LENGTH]  # no separator in the window
    windows = windows[: len(inner)] & inner
    marks = np.zeros(len(order) + 1, np.int64)
    marks[: len(windows)] += windows
    marks[LENGTH : LENGTH + len(windows)] -= windows
    return np.cumsum(marks)[:-1] > 0


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "speed": speed,
    "snapshots": snapshots,
    "substrings": substrings,
}


def main() -> None:
    """Run the parts of the benchmark that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--peers", default="", help="site-packages with rensa, datasketch, pydivsufsort")
    parser.add_argument("--megabytes", type=float, default=20, help="text for speed and substrings")
    parser.add_argument("--documents", type=int, default=32_000, help="of all snapshots together")
    parser.add_argument("--snapshots", type=int, default=8, help="of the part of this name")
    options = parser.parse_args()
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()

"""What the text index takes: seconds and memory to build, bytes a token, and seconds to find the spans of 100 tokens.

    python -m benchmarks.text_index [--tokens 1000000000] [--shard-tokens 100000000] [--folder FOLDER]

The shards are generated. Tokens are drawn as words are in a text (Zipf), in documents of 500 tokens on average; one
document in five is a copy of an earlier one, as in a crawl. A quarter of the tokens first, then half, then all: so
growth shows. Each query has 100 tokens: parts of 10 to 40 tokens of documents, with drawn tokens between them. *Cold*
is the first query of a process after the files have left the page cache. Linux.

    python -m benchmarks.text_index --root RUNS

prints instead, for the artifacts of a root, the processor seconds of its text indexes, divided by those of everything
from crawl to shards.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.trace import share_of_corpus_half
from training.data.tokens.shards import OFFSETS, TOKENS
from training.job import InputArtifact
from training.provenance.text.search import IndexedShard, maximal_spans
from training.provenance.text.suffixes import first_places, longest_matches, suffix_array

VOCABULARY = 32_000
DOCUMENT_TOKENS = 500
COPIES = 0.2
QUERY_TOKENS = 100
QUERIES = 200


def main() -> int:
    """Generate, build and ask; or print the shares of a root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000_000)
    parser.add_argument("--shard-tokens", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, help="keeps the shards; without, they are removed")
    parser.add_argument("--root", type=Path, help="a root with text indexes")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ask", type=Path, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.root:
        print(f"{share_of_corpus_half(options.root, 'text_index'):.3f} of the corpus half's processor seconds")
        return 0
    if options.build:
        return build(options.build)
    if options.ask:
        return ask(options.ask)
    with tempfile.TemporaryDirectory() as temporary:
        return measure(options.folder or Path(temporary), options)


def measure(folder: Path, options: argparse.Namespace) -> int:
    """Make what is not there yet, and print a line for a quarter, a half and all of the shards."""
    number = -(-options.tokens // options.shard_tokens)
    built, chance = [], np.random.default_rng(0)
    for one in range(number):
        base = folder / f"{one:05d}"
        if not base.with_suffix(".npy").exists():
            generate(base, options.shard_tokens, chance)
            built.append(call("--build", base))
    if built:
        rates = [one["tokens"] / one["processor"] / 1e6 for one in built]
        peak = max(one["peak"] for one in built)
        print(
            f"{len(built)} shards built, {statistics.median(rates):.2f} [{min(rates):.2f}-{max(rates):.2f}] M tokens"
            f" per processor second; peak {peak / 1e9:.2f} GB, {peak / options.shard_tokens:.1f} bytes a token"
        )
    bytes_of = sum(path.stat().st_size for path in folder.glob("*.npy") if not path.name.endswith(OFFSETS))
    print(f"on disk: {bytes_of / (number * options.shard_tokens):.3f} bytes a token")
    for part in sorted({max(number // 4, 1), max(number // 2, 1), number}):
        bases = [folder / f"{one:05d}" for one in range(part)]
        for base in bases:
            for path in (base.with_suffix(TOKENS), base.with_suffix(".npy"), base.with_suffix(".first.npy")):
                forget(path)
        said = call("--ask", *bases)
        print(
            f"{part * options.shard_tokens:,} tokens in {part} shards: cold {said['cold'] * 1e3:.1f} ms, warm"
            f" {said['median'] * 1e3:.2f} ms [{said['least'] * 1e3:.2f}-{said['most'] * 1e3:.2f}] for"
            f" {QUERIES} queries, {said['spans']:.1f} spans each; peak of other memory {said['peak'] / 1e6:.0f} MB"
        )
    return 0


def call(*arguments: object) -> dict[str, float]:
    """Run this module in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "benchmarks.text_index", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def generate(base: Path, num_tokens: int, chance: np.random.Generator) -> None:
    """Write the tokens and the offsets of a shard."""
    tokens = np.minimum(chance.zipf(1.2, num_tokens), VOCABULARY - 1).astype(np.uint16)
    lengths = chance.geometric(1 / DOCUMENT_TOKENS, 2 * num_tokens // DOCUMENT_TOKENS)
    offsets = np.cumsum(lengths)
    offsets = np.concatenate([[0], offsets[offsets < num_tokens], [num_tokens]])
    for document in np.flatnonzero(chance.random(len(offsets) - 1) < COPIES).tolist():
        earlier = int(chance.integers(0, document + 1))
        size = int(min(offsets[document + 1] - offsets[document], offsets[earlier + 1] - offsets[earlier]))
        tokens[offsets[document] : offsets[document] + size] = tokens[offsets[earlier] : offsets[earlier] + size]
    tokens[offsets[1:] - 1] = 0
    base.parent.mkdir(parents=True, exist_ok=True)
    tokens.tofile(base.with_suffix(TOKENS))
    np.save(base.with_suffix(OFFSETS), offsets)


def build(base: Path) -> int:
    """Sort one shard; print tokens, processor seconds of the second sorting, and the process's peak of memory."""
    suffix_array(np.arange(10, dtype=np.uint16), 10)  # compiles or loads
    tokens = np.fromfile(base.with_suffix(TOKENS), np.uint16)
    begun = time.process_time()
    suffixes, first = suffix_array(tokens, VOCABULARY), first_places(tokens, VOCABULARY)
    processor = time.process_time() - begun
    np.save(base.with_suffix(".first.npy"), first)
    np.save(base.with_suffix(".npy"), suffixes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"tokens": len(tokens), "processor": processor, "peak": peak}))
    return 0


def ask(bases: list[Path]) -> int:
    """Ask QUERIES queries; print the seconds of the first, and of all when they are asked again."""
    shards = list(map(opened, bases))
    chance = np.random.default_rng(1)
    queries = [query_of(shards, chance) for _ in range(QUERIES)]
    compile_search()
    seconds, spans = [], 0
    for round_number in range(2):
        for query in queries:
            begun = time.perf_counter()
            found = maximal_spans(shards, query)
            seconds.append(time.perf_counter() - begun)
            spans += len(found) * round_number
    again = seconds[QUERIES:]
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    said = {
        "cold": seconds[0],
        "median": statistics.median(again),
        "least": min(again),
        "most": max(again),
        "spans": spans / QUERIES,
        "peak": int(status["RssAnon"].split()[0]) * 1024,
    }
    print(json.dumps(said))
    return 0


def compile_search() -> None:
    """Ask a shard of three tokens, so that the search is compiled for arrays that cannot be written to."""
    tokens = np.zeros(3, np.uint16)
    arrays = (tokens, suffix_array(tokens, 1), first_places(tokens, 1))
    for array in arrays:
        array.flags.writeable = False
    longest_matches(*arrays, np.zeros(1, np.int64), np.zeros((1, 3), np.int64))


def opened(base: Path) -> IndexedShard:
    """The shard with its index, memory-mapped."""
    offsets, suffixes, first = (
        np.load(base.with_suffix(suffix), mmap_mode="r").view(np.ndarray) for suffix in (OFFSETS, ".npy", ".first.npy")
    )
    tokens = np.memmap(base.with_suffix(TOKENS), np.uint16, "r").view(np.ndarray)
    shards = InputArtifact(asset="token_shards", partition="", fingerprint="", digest="", path=str(base.parent))
    return IndexedShard(item=shards, path=base.name, tokens=tokens, offsets=offsets, suffixes=suffixes, first=first)


def query_of(shards: list[IndexedShard], chance: np.random.Generator) -> list[int]:
    """100 tokens: parts of documents, with drawn tokens between them."""
    query: list[int] = []
    while len(query) < QUERY_TOKENS:
        tokens = shards[int(chance.integers(len(shards)))].tokens
        at, size = int(chance.integers(0, len(tokens) - 40)), int(chance.integers(10, 41))
        query += [token for token in tokens[at : at + size].tolist() if token]
        query += chance.integers(1, VOCABULARY, 3).tolist()
    return query[:QUERY_TOKENS]


def forget(path: Path) -> None:
    """Let the system drop a file's pages from its cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())

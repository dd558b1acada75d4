"""Compare the tokenization of text into shards with other libraries on the same files: the figures of docs/tokens.md.

    PEDIGREE_DATA=… python -m benchmarks.tokens speed --peers VENV/lib/python3.11/site-packages
    PEDIGREE_DATA=… python -m benchmarks.tokens large

tiktoken is not among the project's packages: `--peers` names a folder that has it. Times are processor seconds on one
core, without imports. Every system runs in a process of its own over two document files of --megabytes each: *cold* is
the first, *warm* the second, which has other documents. Each system writes the same file of tokens, end-of-text tokens
included, and the digests are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

# One core for everybody, before the peers are loaded.
os.environ.update(RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import numpy as np

from benchmarks.dedup import made_texts, processor_seconds, scratch
from benchmarks.rounds import ratios, spread
from tests.training.data import chain
from training.contract.job import InputArtifact
from training.data.documents import DocumentWriter, document_files, read_tables
from training.data.tokens import tokenize
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer import (
    PATTERN,
    TOKENIZER_FILE,
    byte_values,
    load_tokenizer,
    plain_text_json,
)
from training.data.tokens.tokenizer_settings import TokenizerRecipe

ROUNDS = 5
VOCABULARY = 8192
END = 0  # the recipe's first special token


# Systems. Each takes the tokenizer's file and gives what encodes a document file into a file of tokens.


Run = Callable[[Path, Path], None]


def ours(tokenizer: Path) -> Run:
    """Return this project's run as in the stage.

    It encodes and checks against the reference, writes shards with offsets and sidecars, and decodes them again.
    """
    plain = load_tokenizer(tokenizer)
    shape = tokenize._Shape(max_tokens=10**9, vocabulary=plain.get_vocab_size(), end_id=END)
    fast, reference = tokenize.fast_encoder(tokenizer), tokenize.reference_encoder(plain)

    def run(source: Path, folder: Path) -> None:
        proving = tokenize.Proving(fast, reference, ["probe"])
        shards = tokenize.write_shards(folder, 0, tokenize._encoded(source, proving, ShardsRecipe()), shape)
        decoded, wrong = tokenize.check_decoding(folder, shards, plain, shape)
        assert decoded and not wrong

    return run


def with_tokenizers(tokenizer: Path) -> Run:
    """Return a run with the library tokenizers: `encode_batch_fast`, then numpy."""
    plain = load_tokenizer(tokenizer)

    def encode(texts: list[str]) -> Iterator[Any]:
        for encoding in plain.encode_batch_fast(texts, add_special_tokens=False):
            yield encoding.ids

    return lambda source, folder: _write(source, folder, encode)


def with_gigatoken(tokenizer: Path) -> Run:
    """Return a run with gigatoken's own batch call only: no comparison with a reference, no sidecar, no decoding."""
    import awkward  # noqa: F401 - gigatoken imports it with the first result
    import gigatoken

    backend = gigatoken.Tokenizer.from_json(plain_text_json(tokenizer))

    def encode(texts: list[str]) -> Iterator[Any]:
        layout = backend.encode_batch(texts).layout
        ids, starts = np.asarray(layout.content.data), np.asarray(layout.offsets.data)
        return (ids[start:end] for start, end in pairwise(starts))

    return lambda source, folder: _write(source, folder, encode)


def with_tiktoken(tokenizer: Path) -> Run:
    """Return a run with tiktoken's `encode_ordinary_batch`, with the same merges and ids."""
    import tiktoken

    plain = load_tokenizer(tokenizer)
    values = byte_values()
    special = set(TokenizerRecipe(snapshots=(), vocabulary=VOCABULARY).special_tokens)
    ranks = {bytes(values[c] for c in token): n for token, n in plain.get_vocab().items() if token not in special}
    encoding = tiktoken.Encoding("same", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return lambda source, folder: _write(
        source, folder, lambda texts: encoding.encode_ordinary_batch(texts, num_threads=1)
    )


def _write(source: Path, folder: Path, encode: Callable[[list[str]], Iterable[Any]]) -> None:
    folder.joinpath("shards").mkdir(parents=True)
    with open(folder / "shards" / "00000.bin", "wb") as stream:
        for table in read_tables(source, ["text"]):
            for ids in encode(table["text"].to_pylist()):
                stream.write(np.array([*ids, END] if isinstance(ids, list) else np.append(ids, END), "<u2").tobytes())


SYSTEMS: dict[str, Callable[[Path], Run]] = {
    "tokenizers": with_tokenizers,
    "tiktoken": with_tiktoken,
    "gigatoken alone": with_gigatoken,
    "ours": ours,
}


# Parts


def prepared(root: Path, megabytes: float) -> tuple[InputArtifact, InputArtifact]:
    """Make documents in two files, and a tokenizer trained on some of them; return both artifacts."""
    texts, _ = made_texts(round(2 * megabytes * 1e6 / 3300))
    source = chain.documents(
        root, "one", [texts[: len(texts) // 2], texts[len(texts) // 2 :]], asset="decontaminated_documents"
    )
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=VOCABULARY, sample_bytes=5_000_000, min_bytes_per_token=1.0)
    return source, chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


def speed(options: argparse.Namespace) -> None:
    """Print megabytes of text per processor second of each system, cold and warm.

    Also prints ratios within a round, and whether the ids are equal.
    """
    with scratch() as root:
        source, tokenizer = prepared(root, options.megabytes)
        files = document_files(source)
        sizes = [sum(_text_bytes(table) for table in read_tables(path, ["text"])) / 1e6 for path in files]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SYSTEMS if name != "tiktoken" or options.peers}
        for _ in range(options.rounds):
            for name in runs:
                runs[name].append(_child(name, files, tokenizer.file(TOKENIZER_FILE), options.peers))
    print(f"{sizes[0]:.1f} MB cold, {sizes[1]:.1f} MB warm, n = {options.rounds}")
    digests = {name: {tuple(run["digests"]) for run in some} for name, some in runs.items()}
    for name, some in runs.items():
        line = [f"{name}:"]
        for place, when in enumerate(("cold", "warm")):
            rates = [sizes[place] / run[when] for run in some]
            times = [peer[when] / run[when] for peer, run in zip(runs["tokenizers"], some, strict=True)]
            line.append(f"{when} {spread(rates)} MB/s, {spread(times)} x tokenizers;")
        line.append(f"peak {median(run['peak_bytes'] for run in some) / 1e6:.0f} MB;")
        line.append("the same ids" if digests[name] == digests["tokenizers"] else "OTHER IDS")
        print(" ".join(line))


def _text_bytes(table: Any) -> int:
    return sum(len(text.encode()) for text in table["text"].to_pylist())


def _child(system: str, files: list[Path], tokenizer: Path, peers: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.tokens", "child", "--system", system, "--peers", peers]
    command += ["--tokenizer", str(tokenizer), "--files", *map(str, files)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(options: argparse.Namespace) -> None:
    """Run one system over the files in order, as a process that `speed` starts."""
    sys.path.append(options.peers)
    run = SYSTEMS[options.system](options.tokenizer)
    seconds: list[float] = []
    digests: list[str] = []
    with scratch() as root:
        for number, source in enumerate(options.files):
            began = processor_seconds()
            run(source, root / str(number))
            seconds.append(processor_seconds() - began)
            digests.append(hashlib.sha256((root / str(number) / "shards" / "00000.bin").read_bytes()).hexdigest())
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    found = {"cold": seconds[0], "warm": seconds[-1], "digests": digests, "peak_bytes": int(peak.split()[1]) * 1024}
    print(json.dumps(found))


def large(options: argparse.Namespace) -> None:
    """Compare this project with gigatoken and tokenizers, in MB/s and ratios.

    The first two run over a file with --repeat times the documents, tokenizers over the documents once.
    """
    with scratch() as root:
        source, item = prepared(root, options.megabytes)
        once, big = document_files(source)[0], root / "big.parquet"
        with DocumentWriter(big) as writer:
            for _ in range(options.repeat):
                for table in read_tables(once):
                    writer.write_table(table)
        size = sum(_text_bytes(table) for table in read_tables(once, ["text"])) / 1e6
        rates: dict[str, list[float]] = {"tokenizers": [], "gigatoken alone": [], "ours": []}
        peaks: dict[str, list[int]] = {name: [] for name in rates}
        for _ in range(options.rounds):
            for name, values in rates.items():
                path, times = (once, 1) if name == "tokenizers" else (big, options.repeat)
                made = _child(name, [path], item.file(TOKENIZER_FILE), options.peers)
                values.append(size * times / made["cold"])
                peaks[name].append(made["peak_bytes"])
    print(f"{size * options.repeat:.0f} MB, tokenizers {size:.0f} MB, n = {options.rounds}")
    for name, values in rates.items():
        times = spread(ratios(values, rates["tokenizers"]))
        print(f"{name}: {spread(values)} MB/s, {times} x tokenizers; peak {median(peaks[name]) / 1e6:.0f} MB")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "speed": speed,
    "large": large,
    "child": child,
}


def main() -> None:
    """Run the parts of the benchmark that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--peers", default="", help="site-packages with tiktoken")
    parser.add_argument("--megabytes", type=float, default=20, help="text of each of the two files")
    parser.add_argument("--repeat", type=int, default=20, help="copies of the documents in the file of `large`")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--system", choices=sorted(SYSTEMS), help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.names:
        PARTS[name](options)


if __name__ == "__main__":
    main()

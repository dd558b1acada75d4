"""Measure what the filters find in real text, compared with labels if there are any: the figures of docs/filters.md.

    PEDIGREE_DATA=… python -m benchmarks.filters language
    python -m benchmarks.filters --documents DIR/documents peers
    PEDIGREE_DATA=… python -m benchmarks.filters kenlm --peers VENV/lib/python3.11/site-packages

`--documents` is a folder of parquet files of an `extracted_documents` artifact. `peers` filters at most `--pages`
English pages, spread over the files, with datatrove's blocks and with this project's rules, `--pairs` times in turn,
and compares every decision and every remaining text. `kenlm` writes this project's model of web texts as an ARPA file,
queries KenLM (not among the project's packages; `--peers` names a folder that has it) and this project's code for other
texts, and prints how far they differ; with `--queried FILE` it writes KenLM's results for the tests' tiny model there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rounds import ratios, spread
from tests.training.data.filter.pages import judge
from tests.training.data.quality.lines import lines_of
from training.data.documents import read_documents
from training.data.filter.judge import make_rules
from training.data.filter.rule import Page
from training.data.filter.settings import FilterRecipe
from training.data.quality import arpa, perplexity
from training.data.sources import read_rows
from training.data.words import table as wordtable
from training.data.words.language import identify, model_path
from training.data.words.lid import read_model

LABELLED = "data://filters/dclm_human_quality_agreement_data.jsonl.gz"


def language(files: list[Path]) -> None:
    """Print the accuracy of language identification on lingua's test items.

    It is given by kind of item, and for sentences also by language and for certain answers. If documents are given, CPU
    time and answers are compared with fastText's own code.
    """
    right: dict[str, list[bool]] = defaultdict(list)
    for row in read_rows("data://langid/lingua_testdata.jsonl.gz"):
        code, score = identify(row["text"])
        right[row["kind"]].append(code == row["lang"])
        if row["kind"] == "sentences":
            right[f"sentences {row['lang']}"].append(code == row["lang"])
            if score >= FilterRecipe().min_language_score:
                right["sentences, certain"].append(code == row["lang"])
    for name, answers in right.items():
        print(f"language, {name}: {sum(answers) / len(answers):.3f} of {len(answers)}")
    if files:
        beside_fasttext([" ".join(row["text"].split()) for row in documents(files)])


def beside_fasttext(lines: list[str], rounds: int = 5) -> None:
    """Compare fastText's own code with this project's on the same lines, in turns: CPU time and answers."""
    import fasttext

    theirs, ours = fasttext.load_model(str(model_path())), read_model(model_path())
    ours.predict(lines[0])  # compiles
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        expected = _timed(seconds["theirs"], lambda: [theirs.predict(line, k=1) for line in lines])
        found = _timed(seconds["ours"], lambda: [ours.predict(line) for line in lines])
    pairs = [
        ((str(a[0][0]).removeprefix("__label__"), float(a[1][0])), b) for a, b in zip(expected, found, strict=True)
    ]
    differ, furthest = sum(a[0] != b[0] for a, b in pairs), max(abs(a[1] - b[1]) for a, b in pairs)
    print(
        f"language, {len(lines)} pages, {sum(map(len, lines)) / 1e6:.1f} million characters: fastText"
        f" {median(seconds['theirs']):.2f} s, ours {median(seconds['ours']):.2f} s of CPU,"
        f" ratio {spread(ratios(seconds['theirs'], seconds['ours']))};"
        f" labels that differ {differ}, probabilities by at most {furthest:.1e}"
    )


def peers(files: list[Path], *, pages: int, pairs: int) -> None:
    """Print CPU seconds of the heuristic rules, of datatrove's blocks and of this project.

    This project is measured with an empty and with a filled word table.
    """
    from benchmarks.datatrove_filters import RULES, judged

    english = [row for row in documents(files) if identify(row["text"])[0] == "en"]
    chosen = english[:: max(1, len(english) // pages)][:pages]
    recipe = FilterRecipe(rules=RULES)
    made = make_rules(recipe, None)
    rows = [row | {"language": "en"} for row in chosen]
    sides = {
        "datatrove": lambda: [judged(row["text"], "en", recipe) for row in rows],
        "ours": lambda: [_outcome(*judge(row, made)) for row in rows],
    }
    for side in sides.values():
        side()  # loads spaCy, compiles the kernels
    seconds: dict[str, list[float]] = defaultdict(list)
    differing = 0
    for _ in range(pairs):
        theirs = _timed(seconds["datatrove"], sides["datatrove"])
        wordtable.forget()
        cold = _timed(seconds["ours, empty table"], sides["ours"])
        warm = _timed(seconds["ours, filled table"], sides["ours"])
        differing += sum(len({*answers}) > 1 for answers in zip(theirs, cold, warm, strict=True))
    characters = sum(len(row["text"]) for row in rows)
    print(f"peers: {len(rows)} English pages, {characters / 1e6:.1f} million characters, {pairs} pairs")
    for name, spent in seconds.items():
        times = spread(ratios(seconds["datatrove"], spent))
        print(f"  {name}: {median(spent):.2f} s CPU, {len(rows) / median(spent):.0f} pages a second, times {times}")
    print(f"  decisions or texts that differ: {differing} of {len(rows) * pairs}")


def kenlm(*, peers: str, queried: Path | None) -> None:
    """Compare the base-10 log probabilities of KenLM and of this project.

    Every word and line end of unseen texts is compared.
    """
    sys.path.append(peers)
    import kenlm as query  # type: ignore[import-not-found]

    if queried:
        _query_tiny(query, queried)
        return
    seen = [row["text"] for row in read_rows("data://text/c4_demo.jsonl.gz")]
    asked = [row["text"] for row in read_rows(LABELLED)]
    lines = [line for text in asked for line in lines_of(text)][:5000]
    for order in (3, 5):
        model = perplexity.train(seen, order=order)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.arpa")
            with path.open("w", encoding="utf-8") as stream:
                arpa.write_arpa(model, stream)
            size, theirs = path.stat().st_size, query.Model(str(path))
        said = [value for line in lines for value, _, _ in theirs.full_scores(" ".join(line), bos=True, eos=True)]
        differences = np.abs(model.log_probabilities(lines) / arpa.LOG_10 - np.array(said))
        print(
            f"kenlm, order {order}, {sum(map(len, model.log_probability))} n-grams, {size / 1e6:.1f} MB of ARPA:"
            f" {len(lines)} lines, {len(said)} words and line ends; base 10 logarithms differ by at most"
            f" {differences.max():.1e}, {differences.mean():.1e} on average"
        )


def _query_tiny(query: Any, out: Path) -> None:
    """Write KenLM's results for the texts into the file `out`.

    It is the reference of tests/training/data/quality/test_arpa.py.
    """
    texts = list(json.loads(out.read_text("utf-8")))
    model = query.Model(str(out.with_name("tiny.arpa")))
    rows = {}
    for text in texts:
        (line,) = lines_of(text)
        rows[text] = [round(value, 7) for value, _, _ in model.full_scores(" ".join(line), bos=True, eos=True)]
    entries = (f" {json.dumps(text, ensure_ascii=False)}: {json.dumps(values)}" for text, values in rows.items())
    out.write_text("{\n" + ",\n".join(entries) + "\n}\n", "utf-8")


def _outcome(page: Page, reason: str) -> tuple[str, str]:
    return reason, "" if reason else page.text


def _timed(spent: list[float], work: Callable[[], Any]) -> Any:
    started = time.process_time()
    result = work()
    spent.append(time.process_time() - started)
    return result


def documents(files: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all document files."""
    for path in files:
        yield from read_documents(path)


def main() -> None:
    """Run the parts of the benchmark that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=("kenlm", "language", "peers"))
    parser.add_argument("--documents", type=Path, action="append", default=[])
    parser.add_argument("--pages", type=int, default=150)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peers", default="", help="site-packages with kenlm")
    parser.add_argument("--queried", type=Path, help="write KenLM's figures for the tests' model here")
    options = parser.parse_args()
    files = [path for folder in options.documents for path in sorted(folder.glob("*.parquet"))]
    for part in options.parts:
        if part == "peers":
            peers(files, pages=options.pages, pairs=options.pairs)
        elif part == "kenlm":
            kenlm(peers=options.peers, queried=options.queried)
        else:
            language(files)


if __name__ == "__main__":
    main()

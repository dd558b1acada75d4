"""Measure what the filters find in real text, compared with labels if there are any: the figures of docs/filters.md.

    PEDIGREE_DATA=… python -m benchmarks.filters language classifier toxicity
    python -m benchmarks.filters --documents DIR/documents rules personal peers
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
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from training.data.documents import read_documents
from training.data.filter import personal_data, toxicity
from training.data.filter.judge import judge, make_rules
from training.data.filter.rule import Page
from training.data.filter.settings import FilterRecipe
from training.data.quality import arpa, classifier, perplexity
from training.data.quality.forms import lines_of
from training.data.sources import read_rows
from training.data.words import table as wordtable
from training.data.words.language import identify, model_path
from training.data.words.lid import read_model

LABELLED = "data://filters/dclm_human_quality_agreement_data.jsonl.gz"
FOLDS = 5
HEURISTICS = ("gopher_repetition", "gopher_quality", "c4", "fineweb")


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
    ratios = sorted(a / b for a, b in zip(seconds["theirs"], seconds["ours"], strict=True))
    pairs = [
        ((str(a[0][0]).removeprefix("__label__"), float(a[1][0])), b) for a, b in zip(expected, found, strict=True)
    ]
    differ, furthest = sum(a[0] != b[0] for a, b in pairs), max(abs(a[1] - b[1]) for a, b in pairs)
    print(
        f"language, {len(lines)} pages, {sum(map(len, lines)) / 1e6:.1f} million characters: fastText"
        f" {median(seconds['theirs']):.2f} s, ours {median(seconds['ours']):.2f} s of CPU, ratio {median(ratios):.1f}"
        f" [{ratios[0]:.1f}-{ratios[-1]:.1f}]; labels that differ {differ}, probabilities by at most {furthest:.1e}"
    )


def quality(_: list[Path]) -> None:
    """Print the classifier's AUC on pages that people labelled good or bad, by cross-validation."""
    sides: dict[int, list[str]] = {0: [], 1: []}
    for row in read_rows(LABELLED):
        sides[int(row["label"])].append(row["text"])
    areas = []
    for fold in range(FOLDS):
        learned = {label: [t for i, t in enumerate(texts) if i % FOLDS != fold] for label, texts in sides.items()}
        model = classifier.train(learned[1], learned[0], buckets=65_536)
        good, bad = ([model.score(text) for text in sides[label][fold::FOLDS]] for label in (1, 0))
        areas.append(classifier.area_under_curve(good, bad))
    print(f"classifier: AUC {sum(areas) / FOLDS:.3f} in {FOLDS} folds, {', '.join(f'{area:.3f}' for area in areas)}")


def toxic(_: list[Path]) -> None:
    """Print the share of dialogues above the word list's limit, and the AUC of a trained classifier on unseen texts."""
    limit = FilterRecipe().max_toxic_word_fraction
    rows = list(read_rows("data://preference/hh_rlhf_harmless_base_test.jsonl.gz"))
    for side in ("rejected", "chosen"):
        above = sum(toxicity.toxic_fraction(str(row[side])) > limit for row in rows)
        print(f"toxicity, {side}: {above / len(rows):.3f} of {len(rows)} above {limit}")
    asked = [_turns(str(row["chosen"]), "Human")[0] for row in rows]
    messages = list(read_rows("data://sft/oasst1_en_validation.jsonl.gz"))
    _ranked("red team's requests / others", asked, [row["text"] for row in messages if row["role"] == "prompter"])
    answers = ([_turns(str(row[side]), "Assistant")[-1] for row in rows] for side in ("rejected", "chosen"))
    _ranked("rejected / chosen answers to the red team", *answers)
    labelled = [(row["text"], row["labels"]) for row in messages if row["labels"]]
    called = {text: dict(zip(labels["name"], labels["value"], strict=True)) for text, labels in labelled}
    sides = [
        [text for text, said in called.items() if (said.get("toxicity", 0) >= 0.5) == side] for side in (True, False)
    ]
    _ranked("messages that people called toxic / others", *sides)


def _turns(dialogue: str, speaker: str) -> list[str]:
    """Return the turns of one of the two speakers of a dialogue."""
    parts = re.split(r"\n\n(Human|Assistant): ", dialogue)
    return [text for who, text in zip(parts[1::2], parts[2::2], strict=True) if who == speaker]


def _ranked(name: str, toxic_texts: list[str], others: list[str]) -> None:
    """Print the AUC of the classifier and of the word list, by cross-validation.

    Texts that are in both sets are left out.
    """
    common = set(toxic_texts) & set(others)
    sides = [sorted(set(texts) - common) for texts in (toxic_texts, others)]
    for texts in sides:
        random.Random(0).shuffle(texts)
    areas, listed = [], []
    for fold in range(FOLDS):
        learned = [[text for i, text in enumerate(texts) if i % FOLDS != fold] for texts in sides]
        model = classifier.train(*learned, buckets=65_536)
        held_out = [texts[fold::FOLDS] for texts in sides]
        areas.append(classifier.area_under_curve(*([model.score(text) for text in texts] for texts in held_out)))
        listed.append(
            classifier.area_under_curve(*([toxicity.toxic_fraction(text) for text in texts] for texts in held_out))
        )
    print(
        f"{name}, {len(sides[0])} / {len(sides[1])} texts: classifier AUC {sum(areas) / FOLDS:.3f}"
        f" ({min(areas):.3f} to {max(areas):.3f}), list {sum(listed) / FOLDS:.3f}"
    )


def rules(files: list[Path]) -> None:
    """Print, for each heuristic rule alone, what it drops of the English pages, and CPU milliseconds per page."""
    pages = [row for row in documents(files) if identify(row["text"])[0] == "en"]
    dropped: set[int] = set()
    for name in HEURISTICS:
        made = make_rules(FilterRecipe(rules=(name,)), None)
        judge(pages[0], made)  # loads the rules and the kernels
        started = time.process_time()
        reasons = [judge(row, made)[1] for row in pages]
        per_page = 1000 * (time.process_time() - started) / len(pages)
        dropped.update(number for number, reason in enumerate(reasons) if reason)
        print(f"{name}: {dict(Counter(filter(None, reasons)).most_common())}, {per_page:.1f} ms a page")
    print(f"English pages: {len(pages)}; {len(pages) - len(dropped)} pass all four")


def personal(files: list[Path]) -> None:
    """Print the number of redactions of personal data by type, and the redaction's speed in characters per CPU second.

    The redacted strings are not shown.
    """
    counts: Counter[str] = Counter()
    characters, started = 0, time.process_time()
    for row in documents(files):
        characters += len(row["text"])
        counts.update(personal_data.redact(row["text"], personal_data.PLACEHOLDERS)[1])
    seconds = time.process_time() - started
    print(f"personal data: {dict(counts)}; {characters / 1e6 / seconds:.1f} million characters a second")


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
        ratios = [base / own for base, own in zip(seconds["datatrove"], spent, strict=True)]
        print(
            f"  {name}: {median(spent):.2f} s CPU, {len(rows) / median(spent):.0f} pages a second,"
            f" {median(ratios):.1f}x [{min(ratios):.1f}-{max(ratios):.1f}]"
        )
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


PARTS = {"language": language, "classifier": quality, "toxicity": toxic, "rules": rules, "personal": personal}


def main() -> None:
    """Run the parts of the benchmark that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=sorted([*PARTS, "kenlm", "peers"]))
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
            PARTS[part](files)


if __name__ == "__main__":
    main()

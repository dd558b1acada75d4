"""Measure the recall and the false positives of the contamination rule (training.data.exams.search) on real exams.

    PEDIGREE_DATA=… python -m benchmarks.contamination_recall [recall] [wrong] [copies] [speed]
        [--half chosen|reported|both] [--only NAME] [--variants cut …]
    PEDIGREE_DATA=… python -m benchmarks.contamination_recall wrong --pages DIR     # other pages, such as manuals

`recall` plants items of each benchmark into real text, changed in the ways of VARIANTS, and prints the percentage found
with its exact 95 % interval. The number after the slash is the percentage found together with the answer. `copies`
plants each item up to 10,000 times, into COPIED_ON pages in turn; `--only` and `--copies` select a part.

`speed` scans the pages of both crawl snapshots for the items of the half, in rounds, and prints the median speed.

`wrong` scans real pages for all items, and the training rows of GSM8K for the items of its test; it prints every marked
passage with its item, for a person to judge. Marks that a person has judged to be near-copies of the item are listed in
NEAR_COPIES; every other mark counts as wrong. The exact upper bound of the rate is printed without and with the
near-copies, and the exit code is 1 if the first is above MOST_WRONG. `--pages` scans HTML files instead: of each folder
in DIR the first `--each` pages by a hash of their paths, and every text once.

The thresholds of the rule were chosen on one half of the benchmarks; the figures in docs/decontamination.md are from
the other half. Only items that are searched without their answer are planted; the others are counted.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from time import process_time
from typing import Final

import pyarrow as pa
from warcio.archiveiterator import ArchiveIterator
from xxhash import xxh3_64_intdigest

from training.data.exams.benchmarks import item_text, read_items
from training.data.exams.search.item_rule import Finder, FoundItem, ItemIndex, ItemText, build_items
from training.data.exams.settings import BenchmarkRecipe
from training.data.extract.pages.html import extract_html
from training.data.extract.settings import ExtractRecipe
from training.data.sources import read_rows, resolve

Fields = dict[str, str]
CHOICES: Final = {"kind": "multiple_choice", "question_field": "query"}
MMLU: Final = {"kind": "multiple_choice", "gold_field": "answer"}
CHOSEN_ON: Final[dict[str, Fields]] = {
    "arc_challenge": CHOICES,
    "bbh": {"kind": "generate", "question_field": "input", "answer_field": "target"},
    "boolq": CHOICES,
    "commonsense_qa": CHOICES,
    "lambada_openai": {"kind": "generate", "question_field": "context", "answer_field": "continuation"},
    "mmlu_val": MMLU,
    "piqa": CHOICES,
}
REPORTED_ON: Final[dict[str, Fields]] = {
    "arc_easy": CHOICES,
    "hellaswag_val": CHOICES,
    "mmlu_test": MMLU,
    "gsm8k_test": {"kind": "generate"},
    "triviaqa_sm_sub": {"kind": "generate", "question_field": "context"},
    "truthfulqa": {"kind": "generate", "question_field": "Question", "answer_field": "Best Answer"},
}
FILLER: Final = "data://text/c4_demo.jsonl.gz"
GSM8K_TRAIN: Final = "data://sft/gsm8k_train.jsonl.gz"
CHANGE: Final = "qqq"
LOOKALIKE: Final = str.maketrans("aceopxyABCEHKMOPTXijs", "асеорхуАВСЕНКМОРТХіјѕ")
SMALL_CAPITALS: Final = str.maketrans(
    "abcdefghijklmnoprstuvwyzABCDEFGHIJKLMNOPRSTUVWYZ", 2 * "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ"
)
FULL_WIDTH: Final = str.maketrans({code: chr(code + 0xFEE0) for code in range(0x21, 0x7F)})
BATCH: Final = 500
ROUNDS: Final = 5
MOST_WRONG: Final = 0.001
NEAR_COPIES: Final = {
    # The item asks what is "Too much money chasing too few goods"; the page explains inflation by these seven words.
    ("http://afaq.test/html/secG3.html", "triviaqa_sm_sub/1070"),
}
COPIED_ON: Final = 5
COPIES: Final = (1, 10, 100, 1_000, 10_000)


# Exams and texts


def exam(name: str, fields: Fields) -> list[ItemText]:
    """Return the items of a benchmark in the shared data, read from the given fields."""
    recipe = BenchmarkRecipe(**{"name": name, "uri": f"data://benchmarks/{name}.jsonl.gz"} | fields)  # type: ignore[arg-type]
    return [item_text(item) for item in read_items(recipe)]


def choices_of(name: str, fields: Fields) -> list[tuple[str, ...]]:
    """Return the choices of each item of a benchmark; an empty list for items without choices."""
    recipe = BenchmarkRecipe(**{"name": name, "uri": f"data://benchmarks/{name}.jsonl.gz"} | fields)  # type: ignore[arg-type]
    return [item.choices for item in read_items(recipe)]


def pages() -> Iterator[tuple[str, str]]:
    """Yield (address, text) of every page of both crawl snapshots, with the text that extraction gives."""
    settings = ExtractRecipe(extractor="resiliparse")
    for path in sorted(Path(resolve("data://crawl")).glob("snapshot-*/web-*-00000.warc.gz")):
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream):
                http = record.http_headers
                kind = (http and http.get_header("content-type")) or ""
                if record.rec_type != "response" or http.get_statuscode() != "200" or "html" not in kind:
                    continue
                page = extract_html(record.content_stream().read(), headers={"content-type": kind}, settings=settings)
                if page.text:
                    yield f"{path.parent.name} {record.rec_headers.get_header('WARC-Target-URI')}", page.text


# Variants: what becomes of an item's question and answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """An item to be planted into a text: question, answer and choices."""

    question: str
    answer: str
    choices: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.question} {self.answer}"


def every(number: int) -> Callable[[Plant], str]:
    """Return a function that replaces every `number`-th word of an item."""

    def changed(plant: Plant) -> str:
        return " ".join(
            CHANGE if place % number == number - 1 else word for place, word in enumerate(plant.text.split())
        )

    return changed


def _middle(plant: Plant, put: Sequence[str], skip: int) -> str:
    words = plant.question.split()
    place = len(words) // 2
    return " ".join([*words[:place], *put, *words[place + skip :], plant.answer])


def _within_words(text: str, sign: str) -> str:
    return re.sub(r"(?<=\w)(?=\w)", sign, text)


def _lettered(plant: Plant) -> str:
    if not plant.choices:
        return f"Q: {plant.question}\nA) {plant.answer}"
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    options = "\n".join(f"({letter}) {choice}" for letter, choice in zip(letters, plant.choices, strict=False))
    letter = letters[plant.choices.index(plant.answer)] if plant.answer in plant.choices else "A"
    return f"{plant.question}\n{options}\nAnswer: {letter}"


def _far(plant: Plant) -> str:
    return f"{plant.question} {' '.join(_FILLER_WORDS[:119])} {plant.answer}"


def cut(pieces: int, words: int) -> Callable[[Plant], str]:
    """Return a function that cuts a question into pieces, with `words` words of another text between them."""

    def changed(plant: Plant) -> str:
        own, others = plant.question.split(), _filler()[7].split()
        edges = [number * len(own) // pieces for number in range(pieces + 1)]
        parts = [" ".join(own[first:end]) for first, end in pairwise(edges)]
        between = [" ".join(others[number * words : (number + 1) * words]) for number in range(pieces - 1)]
        return " ".join([*chain.from_iterable(zip(parts, [*between, plant.answer], strict=True))])

    return changed


def listed(mark: Callable[[int], str]) -> Callable[[Plant], str]:
    """Return a function that writes one word on each line, behind a mark made of the line's number."""
    return lambda plant: "\n".join(f"{mark(line)} {word}" for line, word in enumerate(plant.text.split(), 1))


VARIANTS: Final[dict[str, tuple[float, Callable[[Plant], str]]]] = {
    "verbatim": (0.99, lambda plant: plant.text),
    "upper case": (0.99, lambda plant: plant.text.upper()),
    "no punctuation": (0.99, lambda plant: re.sub(r"[^\w\s'’]", " ", plant.text)),
    "punctuation deleted": (0.99, lambda plant: re.sub(r"[^\w\s]", "", plant.text)),
    "other punctuation": (0.99, lambda plant: "**" + re.sub(r"[^\w\s'’]", " — ", plant.text).replace(" ", " * ")),
    "spacing": (0.99, lambda plant: plant.text.replace(" ", " \u00a0\n\t")),
    "full width": (0.99, lambda plant: plant.text.translate(FULL_WIDTH)),
    "soft hyphens": (0.99, lambda plant: _within_words(plant.text, "\u00ad")),
    "zero width": (0.99, lambda plant: _within_words(plant.text, "\u200b\u2060")),
    "look-alikes": (0.99, lambda plant: plant.text.translate(LOOKALIKE)),
    "lettered options": (0.99, _lettered),
    "one word replaced": (0.95, lambda plant: _middle(plant, [CHANGE], 1)),
    "one word inserted": (0.95, lambda plant: _middle(plant, [CHANGE], 0)),
    "one word deleted": (0.95, lambda plant: _middle(plant, [], 1)),
    "every 12th replaced": (0.95, every(12)),
    "every 9th replaced": (0.90, every(9)),
    "answer 120 words away": (0.90, _far),
    "cut in two by 60 words": (0.95, cut(2, 60)),
    "cut in two by 200 words": (0.95, cut(2, 200)),
    "cut in three by 60 words": (0.70, cut(3, 60)),
    "a word a line, numbered": (0.95, listed(lambda line: f"{line}.")),
    "a word a line, with times": (0.95, listed(lambda line: f"{line // 60:02}:{line % 60:02}")),
    "small capitals": (0.95, lambda plant: plant.text.translate(SMALL_CAPITALS)),
    "Hangul fillers for blanks": (0.95, lambda plant: plant.text.replace(" ", "\u3164")),
    "left-over &nbsp;": (0.95, lambda plant: plant.text.replace(" ", "&nbsp;")),
    "letters as entities": (
        0.95,
        lambda plant: "".join(f"&#{ord(one)};" if one.isalpha() else one for one in plant.text),
    ),
}
_FILLER_WORDS: list[str] = []


# Parts


def recall(options: argparse.Namespace) -> bool:
    """Print the table of recall by variant and benchmark; return whether every value reaches its aim."""
    exams = {name: exam(name, fields) for name, fields in _half(options).items()}
    index = build_items([item for items in exams.values() for item in items])
    finder = Finder(index, compiled_from_bytes=0)
    cells: dict[str, dict[str, str]] = {
        name: {} for name in VARIANTS if not options.variants or name.startswith(tuple(options.variants))
    }
    reached, first = True, 0
    for name, items in exams.items():
        numbers = _sample(index, range(first, first + len(items)), options.items)
        choices = choices_of(name, _half(options)[name])
        plants = {
            number: Plant(
                question=items[number - first].question,
                answer=(items[number - first].answers or ("",))[0],
                choices=choices[number - first],
            )
            for number in numbers
        }
        for variant in cells:
            aim, change = VARIANTS[variant]
            found = _found(finder, {number: change(plant) for number, plant in plants.items()})
            as_item = sum(kind == "item" for kind in found.values())
            low, high = interval(len(found), len(plants))
            must = as_item if change is _far else len(found)
            reached &= must >= aim * len(plants)
            sign = "" if must >= aim * len(plants) else " **below**"
            cells[variant][name] = (
                f"{100 * len(found) / len(plants):.1f} [{100 * low:.1f}-{100 * high:.1f}]"
                f" / {100 * as_item / len(plants):.1f}{sign}"
            )
        first += len(items)
        print(
            f"{name}: {len(items)} items, {_told(index, first - len(items), first)}, {len(plants)} planted", flush=True
        )
    print(f"\n| found, % | {' | '.join(exams)} |\n|---{'|---' * len(exams)}|")
    for variant, row in cells.items():
        print(f"| {variant} | {' | '.join(row.values())} |")
    return reached


def _half(options: argparse.Namespace) -> dict[str, Fields]:
    half = {"chosen": CHOSEN_ON, "reported": REPORTED_ON, "both": CHOSEN_ON | REPORTED_ON}[options.half]
    return {name: fields for name, fields in half.items() if options.only in ("", name)}


def _sample(index: ItemIndex, numbers: range, most: int) -> list[int]:
    """Return the numbers of at most `most` items that are searched without their answer, spread over the benchmark."""
    others = {*index.weak.tolist(), *index.unsearchable.tolist(), *index.joined.tolist()}
    able = [number for number in numbers if number not in others]
    return sorted(random.Random(0).sample(able, min(most, len(able))))


def _told(index: ItemIndex, first: int, end: int) -> str:
    weak = sum(first <= number < end for number in index.weak.tolist())
    none = sum(first <= number < end for number in index.unsearchable.tolist())
    return f"{weak} only word for word with their answer, {none} not at all"


@cache
def _filler() -> list[str]:
    texts = [row["text"] for row in read_rows(FILLER)]
    if not _FILLER_WORDS:
        _FILLER_WORDS.extend(texts[0].split())
    return texts


def _found(finder: Finder, planted: dict[int, str]) -> dict[int, str]:
    """Plant each item into its own text; return, by number, how each found item was found.

    An item is found as an item or as a question.
    """
    filler = _filler()
    numbers = list(planted)
    texts = []
    for number in numbers:
        words = filler[number % len(filler)].split()[:300]
        cut = len(words) // 2
        texts.append(" ".join([*words[:cut], planted[number], *words[cut:]]))
    return {
        numbers[place]: found.kind
        for place, some in finder.find(pa.array(texts))
        for found in some
        if found.item == numbers[place]
    }


def interval(hits: int, tried: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a fraction (Clopper and Pearson, 1934)."""
    from scipy.stats import beta  # takes 2 s, and every process of the tests imports this module

    low = float(beta.ppf(0.025, hits, tried - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, tried - hits)) if hits < tried else 1.0
    return low, high


def wrong(options: argparse.Namespace) -> bool:
    """Scan real pages and GSM8K's training rows for exam items; print each passage found, to look for false positives.

    Return whether the upper bound of the rate of wrong marks is at most MOST_WRONG for each kind of text.
    """
    exams = [item for name, fields in _half(options).items() for item in exam(name, fields)]
    print(f"{len(exams)} items")
    if options.pages:
        return _marks("other pages", exams, pages_in(options.pages, options.each))
    reached = _marks("real pages", exams, pages())
    if options.half != "chosen":
        rows = enumerate(read_rows(GSM8K_TRAIN))
        texts = ((f"row {number}", f"{row['question']}\n{row['answer']}") for number, row in rows)
        reached &= _marks("training rows of GSM8K", exam("gsm8k_test", REPORTED_ON["gsm8k_test"]), texts)
    return reached


def pages_in(folder: Path, each: int) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of HTML files, at most `each` of every folder in this folder, and no text twice."""
    settings, seen = ExtractRecipe(extractor="resiliparse"), set()
    for source in sorted(path for path in folder.iterdir() if path.is_dir()):
        paths = [path for path in source.rglob("*.htm*") if path.is_file()]
        for path in sorted(paths, key=lambda path: xxh3_64_intdigest(str(path.relative_to(folder))))[:each]:
            text = extract_html(path.read_bytes(), headers={"content-type": "text/html"}, settings=settings).text
            if text and text not in seen:
                seen.add(text)
                yield str(path.relative_to(folder)), text


def _marks(what: str, items: Sequence[ItemText], texts: Iterable[tuple[str, str]]) -> bool:
    finder, marked, listed, read = Finder(build_items(items), compiled_from_bytes=0), 0, 0, 0
    batch: list[tuple[str, str]] = []
    for source, text in [*texts, ("", "")]:
        batch.append((source, text))
        if len(batch) < BATCH and source:
            continue
        for place, some in finder.find(pa.array([text for _, text in batch])):
            marked += 1
            listed += all(_is_near_copy(batch[place][0], items[found.item]) for found in some)
            for found in some:
                _show(batch[place], found, items[found.item])
        read += len(batch)
        batch = []
    read -= 1
    without, bound = interval(marked - listed, read)[1], interval(marked, read)[1]
    print(f"{what}: {marked} of {read} marked, {listed} listed as near-copies, {marked - listed} wrong")
    print(f"upper bound of the rate: {without:.5f} wrong, {bound:.5f} with the near-copies", flush=True)
    return without <= MOST_WRONG


def _is_near_copy(source: str, item: ItemText) -> bool:
    return (source.rpartition(" ")[2], f"{item.benchmark}/{item.id}") in NEAR_COPIES


def _show(source: tuple[str, str], found: FoundItem, item: ItemText) -> None:
    listed = ", near-copy" if _is_near_copy(source[0], item) else ""
    print(f"- {source[0]}: {item.benchmark}/{item.id}, {found.kind}, share {found.share}{listed}")
    print(f"  text: {' '.join(source[1][found.start : found.end].split())[:400]}")
    print(f"  item: {' '.join(f'{item.question} | {item.answers[:1]}'.split())[:400]}")


def copies(options: argparse.Namespace) -> bool:
    """Print the percentage of items of which every copy is marked; return whether all values reach their aims.

    The percentages are given by benchmark and number of copies.
    """
    exams = _half(options)
    cells: dict[int, list[str]] = {times: [] for times in options.copies}
    reached = True
    for name, fields in exams.items():
        items = exam(name, fields)
        index = build_items(items)
        finder = Finder(index, compiled_from_bytes=0)
        numbers = _sample(index, range(len(items)), options.items)
        for times in options.copies:
            whole = sum(_marked(finder, items[number], number, times) == times for number in numbers)
            low, high = interval(whole, len(numbers))
            reached &= whole >= 0.99 * len(numbers)
            cells[times].append(f"{100 * whole / len(numbers):.1f} [{100 * low:.1f}-{100 * high:.1f}]")
            print(f"{name}: {times} copies of each of {len(numbers)} items: {cells[times][-1]}", flush=True)
    print(f"\n| every copy found, % | {' | '.join(exams)} |\n|---{'|---' * len(exams)}|")
    for times, row in cells.items():
        print(f"| {times:,} | {' | '.join(row)} |")
    return reached


def _marked(finder: Finder, item: ItemText, number: int, times: int) -> int:
    """Put an item and its answer between words of pages, `times` times; return in how many texts it is found."""
    pages = [page.split()[:20] for page in _filler()[:COPIED_ON]]
    texts = [" ".join([*page[:10], item.question, *item.answers[:1], *page[10:]]) for page in pages]
    column = pa.array([texts[copy % len(texts)] for copy in range(times)])
    return sum(any(found.item == number for found in some) for _, some in finder.find(column))


def speed(options: argparse.Namespace) -> bool:
    """Print how many bytes of pages are scanned in a second of processor time: the median and the range of rounds."""
    exams = [item for name, fields in _half(options).items() for item in exam(name, fields)]
    column = pa.array([text for _, text in pages()])
    finder, rates = Finder(build_items(exams), compiled_from_bytes=0), []
    for _ in range(ROUNDS + 1):
        begun = process_time()
        marked = sum(1 for _ in finder.find(column))
        rates.append(column.nbytes / 1e6 / (process_time() - begun))
    rates = sorted(rates[1:])  # the first round compiles
    print(f"{len(exams)} items, {column.nbytes / 1e6:.1f} MB of {len(column)} pages, {marked} marked:", end=" ")
    print(f"{rates[len(rates) // 2]:.1f} [{rates[0]:.1f}-{rates[-1]:.1f}] MB/s of one core, {ROUNDS} rounds")
    return True


PARTS: Final[dict[str, Callable[[argparse.Namespace], bool]]] = {
    "recall": recall,
    "wrong": wrong,
    "copies": copies,
    "speed": speed,
}


def main() -> int:
    """Run the parts that the command line names, or `recall` and `wrong`; return 1 if a value is below its aim."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=sorted(PARTS))
    parser.add_argument("--half", choices=("chosen", "reported", "both"), default="reported")
    parser.add_argument("--only", default="", help="one benchmark of the half")
    parser.add_argument("--variants", nargs="+", default=(), help="beginnings of names of VARIANTS, for `recall`")
    parser.add_argument("--copies", type=int, nargs="+", default=COPIES, help="how often `copies` plants an item")
    parser.add_argument("--pages", type=Path, help="a folder of folders with HTML files, for `wrong`")
    parser.add_argument("--each", type=int, default=500, help="pages of each of these folders")
    parser.add_argument("--items", type=int, default=400, help="planted of each benchmark")
    options = parser.parse_args()
    reached = [PARTS[part](options) for part in options.parts or ("recall", "wrong")]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    raise SystemExit(main())

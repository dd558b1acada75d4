"""Prove on a real crawl, by the commands that a person gives, what `pedigree trace` and `pedigree takedown` promise.

    PEDIGREE_DATA=DATA python -m benchmarks.proofs [--folder FOLDER] [--pages 40] [--only snapshot,leak]

Of each host in the 14 archives of the crawl of `webdocs` the first pages are taken, as they are, and a model of 1.3
million weights. Four pages are also a snapshot of their own, which the model reads so often that it learns them by
heart. The proofs:

- snapshot: the corpus of the first snapshot is made with its indexes, then the second one is added, up to a promoted
  model. Nothing that was made before changes, and exactly the assets that depend on the new snapshot are made, its
  indexes among them.
- documents: random pages are followed from their WARC record to every step that saw them and back
  (`benchmarks.both_ways`).
- verbatim: what the base model writes after the beginning of a sentence is traced to the page, its WARC record and the
  steps that read it.
- leak: an item of the exam is written into one page of one archive. The model is not promoted, and the refusal names
  the item, the record's offset and the steps; the promoted version stays champion.
- withdrawal: three domains are withdrawn, each on a copy. The answer lists what a reader of the archives counts, and
  prices the models; only the ranks of archives with a withdrawn page are made again, no other document changes, and the
  takedown's scan and a second one (`benchmarks.second_scan`) find none of their words.

Each proof has controls, in which the same check must fail: a changed index, the offset of another page, shuffled words,
the crawl without the item, a sentence that is put back. Printed is one line for each proof; the exit code is 1 if a
proof fails or a control does not. With --folder everything that was made stays there, and is used when the command is
given again. The withdrawal needs a folder that the same code made, because other code takes no rank over. Linux.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from html import unescape
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastwarc.warc import ArchiveIterator
from safetensors.numpy import save_file

from assets.answers.takedown.erasing import scan
from assets.answers.takedown.takedown import CORPUS, LAST
from assets.state.chain import descendants
from assets.state.compare import compare
from assets.state.kept_models import LEARNED
from assets.state.recipe_folders import SHIPPED, load_recipe
from assets.state.tombstones import read_tombstones
from benchmarks.both_ways import record_url
from benchmarks.second_scan import Wanted, Window, files_in, places, texts_of, windows
from benchmarks.takedown import command, copied, words_of
from resources.tracking.reports import Tracking
from resources.tracking.versions import registered_versions
from training.contract import artifact
from training.contract.job import InputArtifact
from training.data.words.ngrams import Hashes
from training.order.batches import documents_at, read_plan
from training.order.sidecars import SIDECAR_SUFFIX
from training.provenance.contents import pieces_of
from training.provenance.grams import grams_of, is_in
from training.provenance.lineage import item_of

EXAM, ITEMS = "data://benchmarks/arc_easy.jsonl.gz", 100
LEARNED_PAGES = tuple(
    f"http://postgres-docs.test/manual/tutorial-{name}.html" for name in ("createdb", "join", "agg", "transactions")
)
LEARNED_IN = "web-01-00000.warc.gz"
DOMAINS = ("varnish-docs.test", "afaq.test", "pylibs.test")
KEEPING = ("extracted_documents", "filtered_documents", "deduplicated_documents", "decontaminated_documents")
PARTS, FATES = ("@pages", "@snapshot-1", "@snapshot-2"), ("documents", "dropped")
IN_RANKS = (
    "extracted_documents",
    "document_scores",
    "filtered_documents",
    "document_signatures",
    "decontaminated_documents",
    "token_shards",
)
LEAST_WORDS = 8  # that the model has to say as a page does
PROMPT_WORDS, SAID_TOKENS, BEGINNINGS = 12, 40, 24
BASE = """\
extends: webdocs
name: proofs-base
description: webdocs without weights, which an empty mapping clears.
mixture: {weights: {}}
"""
RECIPE = """\
extends: proofs-base
name: NAME
description: A real crawl, and a small model that learns four of its pages by heart.
snapshots:
  - {name: pages, source: warc, label: pages, paths: ["PAGES"]}
  - {name: snapshot-1, source: warc, label: web, paths: ["CRAWL/snapshot-1/web-*-00000.warc.gz"]}
decontaminate:
  action: "off"
  benchmarks: &exam
    - {name: arc-easy, uri: "EXAM", kind: multiple_choice, question_field: query, limit: ITEMS}
tokenizer: {vocabulary: 2048, min_bytes_per_token: 1.5}
shards: {buckets: none}
mixture: {weights: {pages: 0.75, web: 0.25}, source_epochs: {pages: 300.0}}
model: {width: 128, layers: 3, heads: 4, kv_heads: 4, mlp_width: 344}
pretrain: {tokens: 327680, sequence_length: 256, global_batch_tokens: 4096}
sft: {data: []}
preferences: {data: []}
evaluation: {suites: *exam, contamination: after, held_out_limit: 20}
promote: {model_name: proofs, min_scores: {}, max_score_drop: 1.0, above_chance: not_required}
automation: {rebuild: none, node_hours_per_day: 0.0}
"""
SECOND = '  - {name: snapshot-2, source: warc, label: web, paths: ["PATHS"]}\n'
ONE, TWO, LEAK = "proofs-one", "proofs-two", "proofs-leak"
NEW = "@snapshot-2"


@dataclass
class Proof:
    """What one proof found: figures to print, what is wrong, and what a control did not notice."""

    figures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    controls: int = 0

    def check(self, is_so: object, problem: str) -> None:
        """Note a problem unless something is so."""
        if not is_so:
            self.problems.append(problem)

    def same(self, what: str, one: Any, other: Any) -> None:
        """Note a problem unless two things are equal."""
        self.check(one == other, f"{what}: {_short(one)}, not {_short(other)}")

    def control(self, what: str, *, is_noticed: object) -> None:
        """Note a problem unless a control was noticed."""
        self.controls += 1
        self.check(is_noticed, f"control: {what} was not noticed")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 300 else f"{text[:300]} …"


@dataclass(frozen=True)
class Ran:
    """What a command answered, and how long it took."""

    code: int
    answer: dict[str, Any]
    errors: str
    seconds: float


@dataclass(frozen=True)
class Place:
    """Where everything is made: recipes, archives, and the root."""

    folder: Path
    data: Path
    _cells: dict[tuple[str, Path], Mapping[tuple[str, str], Any]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The root of the artifacts."""
        return self.folder / "root"

    def recipe(self, name: str, second: str = "") -> None:
        """Write a recipe; `second` are the archives of the second snapshot."""
        text = RECIPE.replace("NAME", name).replace("PAGES", str(self.crawl / "pages-00000.warc.gz"))
        text = text.replace("CRAWL", str(self.crawl)).replace("EXAM", EXAM).replace("ITEMS", str(ITEMS))
        if second:
            text = text.replace("decontaminate:\n", SECOND.replace("PATHS", second) + "decontaminate:\n")
        (self.folder / "recipes").mkdir(exist_ok=True)
        (self.folder / "recipes" / "proofs-base.yaml").write_text(BASE, "utf-8")
        (self.folder / "recipes" / f"{name}.yaml").write_text(text, "utf-8")

    @property
    def crawl(self) -> Path:
        """The folder of the archives that are read, with a folder for each snapshot."""
        return self.folder / "crawl"

    def archive(self, snapshot: int, name: str) -> Path:
        """Return an archive that is read."""
        return self.crawl / f"snapshot-{snapshot}" / name

    def run(self, *arguments: str, root: Path | None = None) -> Ran:
        """Give a command of `pedigree` with --json."""
        begun = time.monotonic()
        self._cells.clear()
        argv = command(*arguments, "--root", str(root or self.root), "--json")
        environment = {**os.environ, "PEDIGREE_RECIPES": str(self.folder / "recipes")}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        lines = done.stdout.strip().splitlines()
        return Ran(done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr, time.monotonic() - begun)

    def cells(self, name: str, root: Path | None = None) -> Mapping[tuple[str, str], Any]:
        """Return the cells of a recipe under the root, as they are since the last command."""
        key = (name, root or self.root)
        if key not in self._cells:
            recipe = load_recipe(name, (self.folder / "recipes", SHIPPED))
            self._cells[key] = compare(recipe, key[1]).cells
        return self._cells[key]


def main() -> int:
    """Do the proofs in order; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keeps what is made; without, it is removed")
    parser.add_argument("--pages", type=int, default=40, help="of each host in each archive; 0 takes all")
    parser.add_argument("--documents", type=int, default=300, help="to follow both ways")
    parser.add_argument("--domains", default=",".join(DOMAINS), help="of the crawl, to withdraw, each on a copy")
    parser.add_argument("--only", default=",".join(PROOFS), help="proofs to do; the first one makes the root")
    options = parser.parse_args()
    if not os.environ.get("PEDIGREE_DATA"):
        sys.exit("PEDIGREE_DATA names no folder; the crawl is read from it")
    unknown = set(options.only.split(",")) - set(PROOFS)
    if unknown:
        sys.exit(f"--only {options.only}: {', '.join(sorted(unknown))}: one of {', '.join(PROOFS)}")
    with tempfile.TemporaryDirectory() as temporary:
        place = Place((options.folder or Path(temporary)).resolve(), Path(os.environ["PEDIGREE_DATA"]))
        os.environ["PEDIGREE_RECIPES"] = str(place.folder / "recipes")
        prepare(place, options.pages or None)
        if missing := without_pages(place, options.domains.split(",")):
            sys.exit(f"--domains {options.domains}: the crawl has no page of {', '.join(missing)}")
        failed = 0
        for name in options.only.split(","):
            begun, proof = time.monotonic(), Proof()
            PROOFS[name](place, proof, options)
            failed += bool(proof.problems)
            told = f"{name}: {'FAILED' if proof.problems else 'proved'} in {time.monotonic() - begun:.0f} s"
            print(f"{told}; {'; '.join(proof.figures)}; {proof.controls} controls", flush=True)
            print("".join(f"  {one}\n" for one in proof.problems), end="", flush=True)
    return 1 if failed else 0


def prepare(place: Place, pages: int | None) -> None:
    """Write the archives with the first pages of each host, that of the pages that are learned, and the recipes."""
    place.crawl.mkdir(parents=True, exist_ok=True)
    for source in sorted((place.data / "crawl").glob("snapshot-*/web-*-00000.warc.gz")):
        responses = [part for part in members(source) if part.type == "response"]
        by_host = defaultdict[str, list[str]](list)
        for part in responses:
            by_host[urlsplit(part.url).netloc].append(part.url)
        own = {url for urls in by_host.values() for url in urls[:pages]}
        _cut(source, place.crawl / source.parent.name / source.name, own)
    _cut(place.data / "crawl" / "snapshot-1" / LEARNED_IN, place.crawl / "pages-00000.warc.gz", set(LEARNED_PAGES))
    place.recipe(ONE)
    place.recipe(TWO, f"{place.crawl}/snapshot-2/web-*-00000.warc.gz")


def _cut(source: Path, target: Path, urls: Set[str]) -> None:
    """Write the responses of an archive with these URLs, and what it says of the crawl."""
    content = source.read_bytes()
    own = [part for part in members(source) if part.type == "warcinfo" or part.url in urls]
    data = b"".join(content[part.start : part.stop] for part in own if part.type in ("warcinfo", "response"))
    target.parent.mkdir(exist_ok=True)
    if not target.exists() or target.read_bytes() != data:
        target.write_bytes(data)


@dataclass(frozen=True)
class Member:
    """A record of an archive: its type and URL, and where its gzip member begins and ends."""

    type: str
    url: str
    start: int
    stop: int


def members(archive: Path) -> list[Member]:
    """Return the records of an archive."""
    found = []
    with archive.open("rb") as stream:
        for record in ArchiveIterator(stream, parse_http=False):
            url = record.headers.get("WARC-Target-URI", "").strip("<>")
            found.append((record.headers["WARC-Type"], url, record.stream_pos))
    spans = pairwise([*(start for *_, start in found), archive.stat().st_size])
    return [Member(type_, url, *span) for (type_, url, _), span in zip(found, spans, strict=True)]


# A new snapshot


def snapshot(place: Place, proof: Proof, options: argparse.Namespace) -> None:
    """Make the first snapshot, add the second one, and compare everything that was there before."""
    first = [place.run("run", ONE, "--until", asset) for asset in LAST]
    problem = "; ".join(ran.errors[-300:] for ran in first if ran.code)
    if problem:
        proof.problems.append(f"the corpus of {ONE} is not made: {problem}")
        return
    before = state_of(place.root)
    second = place.run("run", TWO)
    proof.check(second.code == 0 and second.answer.get("promoted"), f"{TWO} is not promoted: {second.errors[-300:]}")
    if proof.problems:
        return
    changed = [path for path, state in before.items() if state_of_file(Path(path)) != state]
    proof.same("files of the artifacts of before that changed", changed, [])
    expected = of_new_snapshot(second.answer["assets"])
    entries = [(asset, part) for asset, cells in second.answer["assets"].items() for part in cells]
    new = {key for key in entries if is_new(second.answer["assets"][key[0]][key[1]]["uri"], before)}
    proof.same("assets that are new", sorted(new), sorted(expected))
    indexes = sorted(key for key in new if key[0].endswith("_index"))
    proof.same("indexes that are new", indexes, [(one, TWO + NEW) for one in ("provenance_index", "text_index")])
    url = next(
        iter(pq.read_table(_files(place, "token_shards", "shards/*.parquet")[0], columns=["url"])["url"])
    ).as_py()
    traced = place.run("trace", TWO, "--url", url)
    proof.check(any(one["snapshot"] == NEW[1:] for one in traced.answer.get("pages", ())), f"{url} is not found")
    proof.figures += [
        f"{len(before):,} files in {len({Path(one).parents[0] for one in before})} folders unchanged",
        f"{len(entries) - len(new)} of {len(entries)} artifacts reused, {len(new)} new",
        f"{sum(ran.seconds for ran in first):.0f} s for the first, {second.seconds:.0f} s for the second and the model",
    ]
    with tempfile.TemporaryDirectory(dir=place.folder) as temporary:
        own = copied(place.root, Path(temporary) / "root")
        kept = place.cells(TWO)["text_index", f"{TWO}@snapshot-1"].artifact.path
        damaged = flip(own / (next(kept.glob("suffixes/*.npy"))).relative_to(place.root))
        refused = place.run("trace", TWO, "--text", "The following example shows how to create a table.", root=own)
        proof.control(
            "a changed byte of an index by trace", is_noticed=refused.code == 2 and damaged.name in refused.errors
        )
        verified = place.run("verify", TWO, root=own)
        proof.control("a changed byte of an index by verify", is_noticed=verified.code == 1)
        proof.control(
            "a changed file", is_noticed=state_of_file(damaged) != before[str(kept / "suffixes" / damaged.name)]
        )


def of_new_snapshot(assets: Mapping[str, Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the cells of a run that depend on the new snapshot: its own, and what reads all snapshots."""
    below = {*descendants("crawl_archives"), "crawl_archives"}
    return {
        (asset, part)
        for asset, cells in assets.items()
        for part in cells
        if part.endswith(NEW) or ("@" not in part and asset in below and asset not in LEARNED)
    }


def is_new(uri: str, before: Mapping[str, Any]) -> bool:
    """Whether the record of an artifact was not there before."""
    return str(Path(uri) / artifact.ARTIFACT_FILE) not in before


def state_of(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return size, time and inode of every file of the committed artifacts under a root."""
    folders = [path.parent for path in root.glob(f"*/*/{artifact.ARTIFACT_FILE}")]
    return {str(path): state_of_file(path) for one in folders for path in one.rglob("*") if path.is_file()}


def state_of_file(path: Path) -> tuple[int, int, int]:
    """Return size, time and inode of a file; zeros if there is none."""
    if not path.exists():
        return 0, 0, 0
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def flip(path: Path) -> Path:
    """Change the last byte of a file that is a link to another root's."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    return path


def _files(place: Place, asset: str, pattern: str, snapshot: str = NEW, root: Path | None = None) -> list[Path]:
    return sorted(place.cells(TWO, root)[asset, TWO + snapshot].artifact.path.glob(pattern))


# Documents, both ways


def documents(place: Place, proof: Proof, options: argparse.Namespace) -> None:
    """Follow random documents from their record to their steps and back."""
    argv = [sys.executable, "-m", "benchmarks.both_ways", "--root", str(place.root), "--model", TWO]
    argv += ["--documents", str(options.documents)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    proof.check(done.returncode == 0, done.stderr[-500:])
    told = json.loads(done.stdout or "{}")
    followed, seen = (told.get(name, 0) for name in ("documents", "in_steps"))
    proof.same("documents", followed, options.documents)
    proof.check(seen, "no document is in a step")
    proof.figures.append(f"{followed:,} documents equal both ways, from their records, {seen:,} of them in steps")
    pages = place.run("trace", TWO, "--domain", next(iter(DOMAINS)), "--shown", "2").answer["pages"]
    moved = {**pages[0], "warc_offset": pages[1]["warc_offset"]}
    proof.same("URL at the offset", record_url(place.root, pages[0]), pages[0]["url"])
    proof.control("the offset of another page", is_noticed=record_url(place.root, moved) != pages[0]["url"])
    shifted = subprocess.run([*argv, "--control", "row"], capture_output=True, text=True, check=False)
    proof.control(
        "a step's row that is one too high", is_noticed=shifted.returncode == 1 and "differs" in shifted.stderr
    )


# What the model says verbatim

SAY = """\
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, count = sys.argv[1], int(sys.argv[2])
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
for line in sys.stdin:
    ids = tokenizer(json.loads(line), return_tensors="pt")["input_ids"]
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    print(json.dumps(tokenizer.decode(out[0][ids.shape[1] :], skip_special_tokens=True)), flush=True)
"""


def verbatim(place: Place, proof: Proof, options: argparse.Namespace) -> None:
    """Let the base model finish sentences, and trace what it said to page, record and steps."""
    rows = [
        row
        for file in _files(place, "decontaminated_documents", "documents/*.parquet", "@pages")
        for row in pq.read_table(file, columns=["id", "url", "text"]).to_pylist()
    ]
    chance, beginnings = random.Random(0), list[str]()
    for row in rows:
        words = list(re.finditer(r"\S+", row["text"]))
        for at in chance.sample(range(20, len(words) - 40), BEGINNINGS // len(rows)):
            beginnings.append(row["text"][words[at].start() : words[at + PROMPT_WORDS - 1].end()])
    model = place.cells(TWO)["base_model", TWO].artifact.path
    folder = next(path.parent for path in model.rglob("config.json"))
    said = generated(folder, beginnings)
    texts = {row["id"]: plain(row["text"]) for row in rows}
    told = place.run("trace", TWO, "--text", "\n\n".join(said), "--shown", "5").answer
    spans = [one for one in told.get("spans", ()) if words_in(one) >= LEAST_WORDS]
    proof.check(spans, f"none of {len(said)} texts has {LEAST_WORDS} words of a page in a row: {said[:3]}")
    if not spans:
        return
    span = max(spans, key=words_in)
    proof.check(any(plain(span["text"]) in plain(one) for one in said), "the span is of no text that the model wrote")
    verbatim = sum(any(plain(span["text"]) in plain(one) for span in spans) for one in said)
    proof.figures.append(f"{verbatim} of {len(said)} texts of the model have {LEAST_WORDS} words of a page in a row")
    for page in span["pages"]:
        record = "".join(record_text(place.root, page).split())  # where the markup has spaces or none
        proof.check("".join(span["text"].split()) in record, f"{page['url']}: not in its record")
        if page["id"] in texts:
            proof.check(plain(span["text"]) in texts[page["id"]], f"{page['id']}: the page does not have the words")
    page = next((one for one in span["pages"] if any(seen["steps"] for seen in one["seen"])), None)
    proof.check(page, "no page of the longest span is in a step")
    if page is None:
        return
    (seen,) = page["seen"]
    steps = sorted({one["step"] for one in seen["steps"]})
    batch = place.run("trace", TWO, "--step", str(steps[0]), "--texts").answer["documents"]
    pieces = [piece["text"] for one in batch if one["id"] == page["id"] for piece in one["pieces"]]
    longest = max((piece for piece in _runs(span["text"]) if piece in plain(" ".join(pieces))), key=len, default="")
    proof.check(longest, f"step {steps[0]} has no words of the span")
    proof.figures.append(f"the longest, {words_in(span)} words, is of {page['url']} at offset {page['warc_offset']:,}")
    proof.figures.append(f"read in {len(steps)} steps from {steps[0]} to {steps[-1]}")
    words = span["text"].split()
    random.Random(1).shuffle(words)
    told = place.run("trace", TWO, "--text", " ".join(words)).answer
    proof.control(
        "shuffled words",
        is_noticed=not [one for one in told["spans"] if words_in(one) >= LEAST_WORDS],
    )


def words_in(span: Mapping[str, Any]) -> int:
    """Return the number of words of a span."""
    return len(span["text"].split())


def generated(model: Path, beginnings: Sequence[str]) -> list[str]:
    """Return how a model goes on after each beginning, always by its likeliest token."""
    given = "".join(json.dumps(one) + "\n" for one in beginnings)
    argv = [sys.executable, "-c", SAY, str(model), str(SAID_TOKENS)]
    done = subprocess.run(argv, input=given, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def plain(text: str) -> str:
    """Return the words of a text with single spaces."""
    return " ".join(text.split())


def _runs(text: str) -> Iterator[str]:
    words = text.split()
    yield from (" ".join(words[at : at + 3]) for at in range(len(words) - 2))


def record_text(root: Path, page: Mapping[str, Any]) -> str:
    """Return the text of a page's WARC record, without tags."""
    (archive,) = {
        path.resolve(): path
        for folder in root.glob("crawl_archives/*/artifact.json")
        if json.loads(folder.read_text("utf-8"))["partition"].endswith(f"@{page['snapshot']}")
        for path in folder.parent.glob(f"**/{page['warc_file']}")
    }.values()
    piece = next(one for one in pieces_of(archive) if one.offset == page["warc_offset"])
    return unescape(re.sub(r"<[^>]*>", "", "\n".join(piece.texts)))


# A leak


def leak(place: Place, proof: Proof, options: argparse.Namespace) -> None:
    """Write an item of the exam into a page that is trained on, and read what refuses the model."""
    number, item = chosen_item(place)
    page = chosen_page(place)
    folder = place.folder / "leak"
    folder.mkdir(exist_ok=True)
    for archive in sorted(place.archive(2, "").glob("web-*")):
        shutil.copyfile(archive, folder / archive.name)
    name = page["warc_file"]
    offset = plant(folder / name, page["url"], f"{item['query']} {item['choices'][item['gold']]}")
    proof.same("offset of the changed record", offset, page["warc_offset"])
    place.recipe(LEAK, f"{folder}/web-*-00000.warc.gz")
    clean = place.run("run", TWO)  # everything is made: the control
    proof.control("a crawl without the item", is_noticed=clean.code == 0 and clean.answer["promoted"])
    with tempfile.TemporaryDirectory(dir=place.folder) as temporary:
        own = copied(place.root, Path(temporary) / "root")
        ran = place.run("run", LEAK, root=own)
        proof.same("exit code", ran.code, 3)
        proof.check(not ran.answer.get("promoted"), "the model was promoted")
        refusals = [one for one in ran.answer.get("refusals", ()) if one["gate"] == "contamination"]
        proof.check(refusals, f"no refusal by the gate contamination: {ran.errors[-300:]}")
        if not refusals:
            return
        findings = refusals[0]["evidence"]["findings"]
        named = {
            (one["benchmark"], one["item"], one.get("url"), one.get("warc_file"), one.get("warc_offset"))
            for one in findings
        }
        proof.same("what is named", named, {("arc-easy", str(number), page["url"], name, offset)})
        seen = {step for one in findings for own in one.get("seen", ()) for step in own["steps"]}
        plan = Path(next(iter(ran.answer["assets"]["training_plan"].values()))["uri"])
        steps = steps_with(own, plan, findings[0]["document"])
        proof.same("steps", sorted(seen), steps)
        proof.check(steps, "no step reads the page")
        (record,) = [one for one in members(folder / name) if one.start == offset]
        proof.same("URL at the offset", record.url, page["url"])
        champions = [
            one for one in registered_versions(Tracking("", own, in_background=False)) if "champion" in one.aliases
        ]
        digest = place.cells(TWO)["base_model", TWO].artifact.digest
        proof.same("digest of the champion", [one.tags.get("digest") for one in champions], [digest])
        proof.figures += [
            f"item {number} of arc-easy named at {page['url']}, {name}, offset {offset:,}, steps {steps}",
            f"exit code {ran.code}, the champion stays; {ran.seconds:.0f} s",
        ]
        other = steps_with(own, plan, other_document(own, plan, steps))
        proof.control("the steps of another page", is_noticed=other != steps)


def chosen_item(place: Place) -> tuple[int, dict[str, Any]]:
    """Return the longest question among the items of the exam, with its number."""
    with gzip.open(place.data / EXAM.removeprefix("data://"), "rt", encoding="utf-8") as lines:
        items = [json.loads(line) for line, _ in zip(lines, range(ITEMS), strict=False)]
    return max(enumerate(items), key=lambda one: len(one[1]["query"].split()))


def chosen_page(place: Place) -> dict[str, Any]:
    """Return the page of the second snapshot that the model reads first."""
    opened = read_plan(place.cells(TWO)["training_plan", TWO].artifact.path)
    sidecars: dict[int, list[dict[str, Any]]] = {}
    for step in range(opened.record.steps):
        for shard, document in documents_at(opened, step):
            if shard not in sidecars:
                path = sidecar_of(place.root, opened.record.shards[shard])
                sidecars[shard] = pq.read_table(path, columns=["id", "url", "warc_file", "warc_offset"]).to_pylist()
            row = sidecars[shard][document]
            if row["id"].startswith(f"{NEW[1:]}/"):
                return row
    raise AssertionError(f"no page of {NEW[1:]} is in a step")


def plant(archive: Path, url: str, text: str) -> int:
    """Write a paragraph into the middle of a page of an archive; return the offset of its record."""
    (own,) = [one for one in members(archive) if one.url == url and one.type == "response"]
    content = archive.read_bytes()
    with archive.open("rb") as stream:
        stream.seek(own.start)
        record = next(iter(ArchiveIterator(stream, parse_http=True)))
        status, headers = record.http_headers.status_line, list(record.http_headers)
        warc, body = list(record.headers), record.reader.read()
    body = decoded({name.lower(): value for name, value in headers}, body)
    ends = [one.end() for one in re.finditer(rb"</p>", body)]
    at = ends[len(ends) // 2]
    body = body[:at] + f"\n<p>{text}</p>\n".encode() + body[at:]
    gone = ("content-encoding", "content-length", "transfer-encoding")
    kept = [(name, value) for name, value in headers if name.lower() not in gone]
    block = "\r\n".join([status, *(f"{name}: {value}" for name, value in [*kept, ("Content-Length", len(body))])])
    block = block.encode("latin-1") + b"\r\n\r\n" + body
    gone = ("content-length", "warc-block-digest", "warc-payload-digest")
    fields = [*((name, value) for name, value in warc if name.lower() not in gone), ("Content-Length", len(block))]
    head = "\r\n".join(["WARC/1.0", *(f"{name}: {value}" for name, value in fields)]).encode() + b"\r\n\r\n"
    archive.write_bytes(content[: own.start] + gzip.compress(head + block + b"\r\n\r\n") + content[own.stop :])
    return own.start


def decoded(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the body of a response without its transfer and content encoding."""
    if headers.get("transfer-encoding") == "chunked":
        rest, parts = body, list[bytes]()
        while rest and (size := int(rest.partition(b"\r\n")[0].partition(b";")[0], 16)):
            rest = rest.partition(b"\r\n")[2]
            parts.append(rest[:size])
            rest = rest[size + 2 :]
        body = b"".join(parts)
    return gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body


def steps_with(root: Path, plan: Path, document: str) -> list[int]:
    """Return the steps of a plan that read a document, by reading every batch."""
    opened = read_plan(plan)
    where = {
        (number, ids.index(document))
        for number, one in enumerate(opened.record.shards)
        for ids in [_ids(root, one)]
        if document in ids
    }
    return [step for step in range(opened.record.steps) if where & set(documents_at(opened, step))]


def other_document(root: Path, plan: Path, steps: Sequence[int]) -> str:
    """Return a document of a step that is not one of these."""
    opened = read_plan(plan)
    step = next(one for one in range(opened.record.steps) if one not in steps)
    shard, number = documents_at(opened, step)[-1]
    return _ids(root, opened.record.shards[shard])[number]


def sidecar_of(root: Path, shard: Any) -> Path:
    """Return the sidecar of a plan's shard."""
    return (artifact.folder_of(root, "token_shards", shard.artifact) / shard.path).with_suffix(SIDECAR_SUFFIX)


def _ids(root: Path, shard: Any) -> list[str]:
    return pq.read_table(sidecar_of(root, shard), columns=["id"])["id"].to_pylist()


# A withdrawal


def withdrawal(place: Place, proof: Proof, options: argparse.Namespace) -> None:
    """Withdraw some domains, each on a copy of the root, and compare lists, ranks, documents and words.

    As many are withdrawn at once as there are processors. In the first copy words of a page lie in files that no stage
    wrote: the command names what it may not change.
    """
    domains = options.domains.split(",")
    with ProcessPoolExecutor(min(len(domains), os.cpu_count() or 1)) as pool:
        given = [(place, domain, domain == domains[0]) for domain in domains]
        for own in pool.map(_on_a_copy, *zip(*given, strict=True)):
            proof.figures += own.figures
            proof.problems += own.problems
            proof.controls += own.controls


def _on_a_copy(place: Place, domain: str, plants: bool) -> Proof:
    proof, begun = Proof(), time.monotonic()
    with tempfile.TemporaryDirectory(dir=place.folder) as temporary:
        _withdrawn(place, copied(place.root, Path(temporary) / "root"), domain, proof, plants=plants)
    proof.figures.append(f"{domain} in {time.monotonic() - begun:.0f} s")
    return proof


def _withdrawn(place: Place, own: Path, domain: str, proof: Proof, *, plants: bool) -> None:
    named = ("--domain", domain, "--reason", "asked by its owner")
    before, files = pages_of(place, own), state_of(own)
    asked = place.run("takedown", *named, "--dry-run", root=own)
    changed = [one for one in files if state_of_file(Path(one)) != files[one]]
    proof.same(f"{domain}: files that the answer changed", changed, [])
    counted = sum(len(records_of_domain(archive, domain)) for archive in place.crawl.rglob("*.warc.gz"))
    told, more = asked.answer["asked"][0]["pages"], asked.answer["duplicates"]["pages"]
    proof.same(f"{domain}: pages by the archives", told, counted)
    proof.same(f"{domain}: pages in all", asked.answer["pages"], told + more)
    seeds = {seed for one in asked.answer["seeds"] for seed in one["seeds"]}
    proof.check(seeds and all(is_of(domain, seed) for seed in seeds), f"{domain}: its seeds are not named: {seeds}")
    priced = {one["asset"] for one in asked.answer["rebuild"]["models"]["assets"]}
    proof.check({"base_model", "model_scores"} <= priced, f"{domain}: the models are not priced: {sorted(priced)}")
    proof.same(f"{domain}: exit code", place.run("takedown", *named, "--yes", "--no-rebuild", root=own).code, 0)
    wanted, gone = words_of(own), {one.entry for stone in read_tombstones(own) for one in stone.entries}
    raw = only_of(place, own, domain, gone)
    sentence = sentence_of(raw, wanted)
    held = places([*files_in(own / "token_shards"), *files_in(own / "text_index")], raw)[0]
    proof.control(f"{domain}: the words before, by the second scanner", is_noticed=len(held) > 1)
    tokenizers = {one: one.read_bytes() for one in own.rglob("tokenizer.json")}
    seconds, left = 0.0, planted(own, sentence) if plants else {}
    if left:
        ended = place.run("takedown", *named, "--yes", root=own)
        seconds, proven = ended.seconds, (ended.answer.get("report") or {}).get("proof", {})
        proof.control(f"{domain}: planted words", is_noticed=ended.code == 1 and not proven.get("is_proved", True))
        said = {own / one["path"] for one in proven.get("hits", ())}
        proof.same(f"{domain}: planted words that are named", said, set(left))
        proof.same(f"{domain}: planted words by the second scanner", set(places(files_in(own), raw)[0]), set(left))
        for path, content in left.items():
            _replace(path, content)
    ended = place.run("takedown", *named, "--yes", root=own)
    proof.check(ended.code == 0, ended.errors[-300:])
    report = ended.answer.get("report") or {"proof": {"is_proved": False, "files": 0, "runs": 0}}
    proof.check(report["proof"]["is_proved"], f"{domain}: the report does not say that it is proved")
    proof.check(all(one.read_bytes() == was for one, was in tokenizers.items()), f"{domain}: a tokenizer was changed")
    after = pages_of(place, own)
    for key, rows in before.items():
        stays = {id_: row for id_, row in rows.items() if not is_of(domain, row[0]) and id_ not in gone}
        proof.same(
            f"{domain}, {key}: documents that changed", sorted(set(stays.items()) ^ set(after[key].items()))[:3], []
        )
    proof.figures.append(f"{domain}: {told} pages and {more} of their clusters; {made_again(place, own, proof)}")
    is_made = [cell.state == "made" for (asset, _), cell in place.cells(TWO, own).items() if asset in CORPUS]
    proof.check(all(is_made), f"{domain}: a part of the corpus is not made")
    proof.same(f"{domain}: places with words", [one["path"] for one in scan(own, wanted).hits], [])
    found, read, size = places(files_in(own), raw)
    proof.same(f"{domain}: places with words by the second scanner", found, {})
    proof.figures.append(
        f"{len(wanted):,} runs in none of {report['proof']['files']:,} files; {len(raw):,} by a second scanner in none"
        f" of {read:,} files of {size:,} bytes; {seconds + ended.seconds:.0f} s"
    )
    _put_back(own, sentence, raw, proof)
    proof.control("the documents of before", is_noticed=before != after)


def sentence_of(raw: set[Window], wanted: Hashes) -> str:
    """Return eight words that both scanners look for."""
    for run in sorted(raw):
        text = " ".join(run)
        if all(word.isalpha() for word in run) and is_in(grams_of([text])[0], wanted).all():
            return text
    raise AssertionError("the two scanners look for no run of words together")


def _replace(path: Path, content: bytes | None) -> None:
    """Give a file that may be linked to another root's a content of its own; None removes it."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def planted(own: Path, sentence: str) -> dict[Path, bytes | None]:
    """Write a sentence into files of every kind under a root.

    Return those which no takedown may change, with their earlier contents.
    """
    text = f"Somebody noted: {sentence}."
    for log in sorted(own.glob("base_model/*/log.txt"))[:1]:
        _replace(log, log.read_bytes() + f"{text}\n".encode())
    run = sorted((own / "dagster" / "history" / "runs").glob("*-*.db"))[0]
    for database, statement in (
        (own / "mlflow.db", "UPDATE params SET value = ? WHERE rowid = (SELECT min(rowid) FROM params)"),
        (run, "INSERT INTO event_logs (run_id, event, timestamp) VALUES ('planted', ?, '2026-01-01 00:00:00')"),
    ):
        with closing(sqlite3.connect(database)) as store, store:
            store.execute(statement, (text,))
    notes = own / "mlflow-artifacts" / "notes"
    notes.mkdir(parents=True)
    (notes / "said.jsonl.gz").write_bytes(gzip.compress(f"{json.dumps({'said': text})}\n".encode()))
    pq.write_table(pa.table({"said": [text]}), notes / "said.parquet")
    tokenizer = sorted(own.glob("base_model/*/model/tokenizer.json"))[0]
    left: dict[Path, bytes | None] = {tokenizer: tokenizer.read_bytes(), notes / "said.npy": None}
    fields = json.loads(left[tokenizer] or b"")
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": 1 << 20, "content": text})
    _replace(tokenizer, json.dumps(fields).encode())
    np.save(notes / "said.npy", np.array([text]))
    left[checkpoint := own / "checkpoint" / "step.safetensors"] = None
    checkpoint.parent.mkdir()
    save_file({"weight": np.zeros(4, np.float32)}, checkpoint, metadata={"said": text})
    return left


def _put_back(own: Path, sentence: str, raw: set[Window], proof: Proof) -> None:
    """Put a withdrawn sentence back in several forms, which both scanners must find."""
    wanted = np.unique(grams_of([sentence])[0])
    forms = {
        "notes.txt": sentence.encode(),
        "capitals.txt": sentence.upper().replace(" ", "\n").encode(),
        "wide.txt": sentence.encode("utf-16"),
        "notes.json": json.dumps({"said": [sentence]}).encode(),
        "notes.jsonl.gz": gzip.compress(sentence.encode()),
        "page.html": f"<p>{sentence.replace(' ', '<b> </b>')}</p>".encode(),
    }
    for name, data in forms.items():
        (folder := own / "put-back" / name).parent.mkdir(exist_ok=True)
        folder.write_bytes(data)
    hits = {Path(one["path"]).name for one in scan(own, wanted, files_in(own / "put-back")).hits}
    found = {path.name for path in places(files_in(own / "put-back"), raw)[0]}
    for name in forms:
        proof.control(f"a sentence in {name}", is_noticed=name in hits)
        proof.control(f"a sentence in {name} by the second scanner", is_noticed=name in found)


def is_of(domain: str, url: str) -> bool:
    """Whether a page is of a domain that is withdrawn, or of a host below it."""
    return f".{urlsplit(url).hostname}".endswith(f".{domain}")


def only_of(place: Place, root: Path, domain: str, gone: Set[str]) -> set[Window]:
    """Return the runs of words that only withdrawn pages have: no other document, no record, no item of the exam."""
    rows = [
        (is_of(domain, row["url"] or "") or row["id"] in gone, row["text"] or "")
        for asset, fate in product(KEEPING, FATES)
        for file in root.glob(f"{asset}/*/{fate}/*.parquet")
        for row in pq.read_table(file, columns=["id", "url", "text"]).to_pylist()
    ]
    own = Wanted({run for text in {text for is_gone, text in rows if is_gone} for run in windows(text)})
    exams = (text for path in files_in(root / "benchmark_index") for text in texts_of(path))
    others = chain({text for is_gone, text in rows if not is_gone}, other_records(place, domain, gone), exams)
    return own.runs - {run for text in others for run in own.within(text)}


def other_records(place: Place, domain: str, gone: Set[str]) -> Iterator[str]:
    """Yield the bodies of the records that are not withdrawn."""
    for archive in sorted(place.crawl.rglob("*.warc.gz")):
        snapshot = archive.parent.name if archive.parent != place.crawl else "pages"
        with archive.open("rb") as stream:
            for record in ArchiveIterator(stream, parse_http=True, auto_decode="all"):
                url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
                if not is_of(domain, url) and f"{snapshot}/{archive.name}/{record.stream_pos:012d}" not in gone:
                    yield record.reader.read().decode("utf-8", "ignore")


def without_pages(place: Place, domains: Sequence[str]) -> list[str]:
    """Return those of some domains of which no archive has a response."""
    archives = sorted(place.crawl.rglob("*.warc.gz"))
    return [one for one in domains if not any(records_of_domain(archive, one) for archive in archives)]


def records_of_domain(archive: Path, domain: str) -> list[Member]:
    """Return the responses of an archive from the domain that is withdrawn."""
    return [one for one in members(archive) if one.type == "response" and is_of(domain, one.url)]


def pages_of(place: Place, root: Path) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
    """Return URL and text of every document that a stage kept, by id."""
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for asset in KEEPING:
        for part in PARTS:
            rows = pa.concat_tables(
                pq.read_table(file, columns=["id", "url", "text"])
                for file in _files(place, asset, "documents/*.parquet", part, root)
            )
            found[asset, part] = {row["id"]: (row["url"], row["text"]) for row in rows.to_pylist()}
    return found


def made_again(place: Place, root: Path, proof: Proof) -> str:
    """Return how many ranks were computed; note a rank that need not have been, or whose documents changed.

    The ranks that may change are those of the archives that hold a withdrawn page.
    """
    told = []
    entries = [one.entry for stone in read_tombstones(root) for one in stone.entries if one.snapshot]
    for part in ("@snapshot-1", NEW):
        cells = place.cells(TWO, root)
        ranks = {asset: ranks_made(item_of(cells[asset, TWO + part].artifact)) for asset in IN_RANKS}
        allowed = {f"{name.split('-')[1]:0>5}.parquet" for name in archives_in(place, part, root, entries)}
        too_many = {asset: made for asset, made in ranks.items() if int(made.split()[0]) > len(allowed)}
        proof.same(f"{part}: ranks that were computed beside {len(allowed)}", too_many, {})
        for asset in KEEPING:
            old, new = (_contents(place, asset, part, own) for own in (place.root, root))
            changed = {name for name in old if old[name] != new.get(name)}
            proof.same(f"{asset} {part}: files whose documents changed", sorted(changed - allowed), [])
        computed, every = (sum(int(made.split()[at]) for made in ranks.values()) for at in (0, 2))
        told.append(f"{computed} of {every}")
    return f"ranks computed: {' and '.join(told)}"


def archives_in(place: Place, part: str, root: Path, entries: Sequence[str]) -> set[str]:
    """Return the archives of a snapshot with a page that was dropped by a takedown, or is among these ids."""
    own = {entry.split("/")[1] for entry in entries if entry.startswith(f"{part[1:]}/")}
    for file in _files(place, "extracted_documents", "dropped/*.parquet", part, root):
        for row in pq.read_table(file, columns=["warc_file", "reason"]).to_pylist():
            if row["reason"].startswith("takedown"):
                own.add(row["warc_file"])
    return own


def _contents(place: Place, asset: str, part: str, root: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in _files(place, asset, "documents/*.parquet", part, root)}


PROOFS: dict[str, Callable[[Place, Proof, argparse.Namespace], None]] = {
    "snapshot": snapshot,
    "documents": documents,
    "verbatim": verbatim,
    "leak": leak,
    "withdrawal": withdrawal,
}


def ranks_made(item: InputArtifact) -> str:
    """Return `computed ranks of all ranks` of an artifact, as text; `whole` for a stage without ranks."""
    record = item.record()
    if "ranks" not in record:
        return "whole"
    index = Path(item.path, "reuse", "marks.jsonl").read_text().count("\n")
    return f"{index - record.get('reused_ranks', {'ranks': 0})['ranks']} of {index}"


if __name__ == "__main__":
    sys.exit(main())

"""Measure how many ranks are computed again, and the processor time, when some of a snapshot's pages are withdrawn.

    python -m benchmarks.reuse [--files 200] [--pages 100] [--check]
    python -m benchmarks.reuse --takedown [--files 200] [--pages 100]
    python -m benchmarks.reuse --recipe kitchen
    python -m benchmarks.reuse --recipe RECIPE --root ROOT

A snapshot of WARC files with made-up pages goes through all stages of the corpus up to token shards, each stage in a
process of its own with one worker. It is then made again under the same root with pages taken out: one page in 1 % of
the files, and one page in every file (with 100 pages in a file, that is 1 % of the pages). Printed are, for each stage
that works in ranks, the number of ranks that were computed, and for all stages the processor time (user and system,
start of Python and imports included) compared with the first build. With `--check` the last build is repeated under
another root; the exit code is 1 if the digest of an artifact differs.

With `--takedown`, the archives stay, 1 % of the pages are named by a takedown list, and the models of the corpus are
kept, as `pedigree takedown` does it: first all pages of 1 % of the files, as of a domain, then as many pages scattered
over all files.

With `--recipe`, every snapshot of the recipe is built up to its token shards. Then, for each snapshot in turn, one page
of its second file that reaches the shards is named by a takedown list, and everything is built again.

With `--root` too, the corpus of the recipe has been made under this root. On copies of it, `pedigree takedown`
withdraws the domain whose pages are closest to 1 % of all, then as many pages as 1 % of all that follow one another in
one archive and reach the shards, then as many scattered over all archives, and the corpus is rebuilt. `--cases` chooses
among `domain`, `neighbours` and `scattered`. The processor time of what was made anew is compared with that of the
whole corpus, as the records have it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assets.recipe_folders import load_recipe, recipe_folders
from assets.running.jobs import job_of
from assets.status import LEARNED, compare, write_reference
from assets.takedown import CORPUS, to_rebuild
from benchmarks.takedown import command, copied
from resources.compute.size import Size
from tests.training.data.extract.test_extract import response
from training import artifact
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.dedup.settings import DedupRecipe
from training.data.documents import document_files, read_documents
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.extract.settings import ExtractRecipe
from training.data.filter.settings import FilterRecipe
from training.data.quality.settings import QualityRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.data.urls import key_of, plain_host
from training.job import InputArtifact, Job, write_job
from training.provenance.lineage import item_of
from training.recipe import Recipe
from training.records import write_record
from training.run_settings import RunSettings
from training.stages import STAGES

CHAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "crawl_archives": ("crawl", ()),
    "extracted_documents": ("extract", ("crawl_archives",)),
    "quality_models": ("quality", ()),
    "document_scores": ("score", ("extracted_documents", "quality_models")),
    "filtered_documents": ("filter", ("extracted_documents", "document_scores")),
    "document_signatures": ("sign", ("filtered_documents",)),
    "deduplicated_documents": ("dedup", ("filtered_documents", "document_signatures")),
    "benchmark_index": ("benchmarks", ()),
    "decontaminated_documents": ("decontaminate", ("deduplicated_documents", "benchmark_index")),
    "tokenizer": ("tokenizer", ("decontaminated_documents",)),
    "token_shards": ("tokenize", ("decontaminated_documents", "tokenizer")),
}
OF_THE_RECIPE = ("quality_models", "benchmark_index", "tokenizer")
PAGE = ("id", "url")
WORDS = 120  # of a page
VOCABULARY = 4000
RULES = ("gopher_quality", "c4")
Built = dict[str, InputArtifact]


def main() -> None:
    """Build, withdraw pages, build again, and print a line for each stage and case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--pages", type=int, default=100, help="in a file")
    parser.add_argument("--check", action="store_true", help="compare the last build with one from nothing")
    parser.add_argument(
        "--takedown", action="store_true", help="withdraw 1 %% of the pages by a list, and keep the models"
    )
    parser.add_argument("--recipe", help="withdraw pages of this recipe by a list instead")
    parser.add_argument("--root", type=Path, help="where the recipe's corpus has been made")
    parser.add_argument("--cases", default="domain,neighbours,scattered", help="with --root: what is withdrawn")
    parser.add_argument("--folder", type=Path, help="where copies of the root go; a folder of its own by default")
    options = parser.parse_args()
    if options.root:
        withdraw_under(options.root, options.recipe, options.folder, options.cases.split(","))
        return
    if options.recipe:
        withdraw(options.recipe)
        return
    number = options.files
    cases = {"1 % of the files": max(1, number // 100), "every file": number}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        first = build(place / "root", archives(place / "0", options, 0))
        told("first build", first, first)
        if options.takedown:
            few = max(1, number // 100)
            ids = [row["id"] for row in pages_of(first)]
            in_few = [id_ for id_ in ids if int(id_.split("/")[1].partition(".")[0]) < few]
            scattered = ids[:: max(1, len(ids) // len(in_few))]
            for case, gone in ((f"{few} of {number} files", in_few), ("scattered over all files", scattered)):
                listed = place / f"{len(case)}.txt"
                listed.write_text("".join(f"{id_}\n" for id_ in gone))
                after = build(place / "root", place / "0", takedown=(str(listed),), kept=first)
                told(f"{len(gone):,} of {len(ids):,} pages withdrawn, {case}", after, first)
            return
        last, folder = first, place / "0"
        for case, touched in cases.items():
            folder = archives(place / str(touched), options, touched)
            last = build(place / "root", folder)
            told(f"a page less in {case} ({touched} of {number})", last, first)
        if options.check:
            anew = build(place / "anew", folder)
            if wrong := [asset for asset in CHAIN if anew[asset].digest != last[asset].digest]:
                sys.exit(f"not what a build from nothing makes: {', '.join(wrong)}")
            print("all digests are those of a build from nothing")


def archives(folder: Path, options: argparse.Namespace, touched: int) -> Path:
    """Write the WARC files into `folder`; the first `touched` of them lack one page."""
    folder.mkdir()
    for number in range(options.files):
        draw = random.Random(number)
        pages = [html(draw, page) for page in range(options.pages)]
        if number < touched:
            pages[options.pages // 2] = b""
        made = [response(f"{number}/{place}", body) for place, body in enumerate(pages) if body]
        (folder / f"{number:05d}.warc.gz").write_bytes(b"".join(made))
    return folder


def html(draw: random.Random, page: int) -> bytes:
    """Return a page of random sentences."""
    words = [draw.choice(LEXICON) for _ in range(WORDS)]
    sentences = [" ".join(words[start : start + 12]).capitalize() + "." for start in range(0, WORDS, 12)]
    paragraphs = "".join(f"<p>{sentence}</p>" for sentence in sentences)
    return f"<html><head><title>Page {page}</title></head><body><article>{paragraphs}</article></body></html>".encode()


def _lexicon() -> list[str]:
    draw = random.Random(0)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    return ["the", "and", "of", "with"] * 100 + ["".join(draw.choices(syllables, k=3)) for _ in range(3000)]


LEXICON = _lexicon()


def pages_of(built: Built) -> list[dict[str, Any]]:
    """Return the ids of all extracted pages, in order."""
    return [row for file in document_files(built["extracted_documents"]) for row in read_documents(file, ["id"])]


def build(root: Path, folder: Path, *, takedown: tuple[str, ...] = (), kept: Built | None = None) -> Built:
    """Make every asset under `root` from the archives in `folder`, each in a process of its own.

    The vocabulary and the quality models are those of `kept`, if given.
    """
    snapshot = SnapshotRecipe(name="one", source="warc", label="web", paths=(str(folder),))
    recipe = FilterRecipe(rules=RULES, gopher_min_words=20)
    settings: dict[str, dict[str, Any]] = {
        "crawl_archives": {"snapshot": snapshot, "files": source_files(snapshot)},
        "extracted_documents": {"extract": ExtractRecipe(takedown=takedown)},
        "quality_models": {"quality": QualityRecipe()},
        "document_scores": {"filter": recipe.measured()},
        "filtered_documents": {"filter": recipe},
        "document_signatures": {"dedup": DedupRecipe()},
        "deduplicated_documents": {"dedup": DedupRecipe()},
        "benchmark_index": {"decontaminate": DecontaminateRecipe()},
        "decontaminated_documents": {"decontaminate": DecontaminateRecipe()},
        "tokenizer": {"tokenizer": TokenizerRecipe(snapshots=("one",), vocabulary=VOCABULARY, min_bytes_per_token=1.0)},
        "token_shards": {"shards": ShardsRecipe()},
    }
    built: Built = {}
    for asset, (_, inputs) in CHAIN.items():
        if kept is not None and asset in LEARNED:
            built[asset] = kept[asset]
            continue
        built[asset] = made(root, asset, settings[asset], [built[name] for name in inputs])
    return built


def made(root: Path, asset: str, settings: dict[str, Any], inputs: list[InputArtifact]) -> InputArtifact:
    """Run one job in a new process; return its artifact."""
    stage = STAGES[CHAIN[asset][0]]
    plain = {name: write_record(value) for name, value in settings.items()}
    given = [(item.asset, item.digest) for item in inputs]
    fingerprint = artifact.digest_of([asset, plain, given])[:32]
    folder = artifact.folder_of(root, asset, fingerprint)
    partition = "tiny" if asset in OF_THE_RECIPE else "tiny@one"
    job = Job(
        stage=stage.name,
        asset=asset,
        partition=partition,
        recipe="tiny",
        fingerprint=fingerprint,
        stage_version=stage.version,
        settings=plain,
        inputs=tuple(inputs),
        output=str(folder),
        run=RunSettings(workers=1),
    )
    made_by_process(job)
    found = artifact.find(folder)
    assert found is not None
    return InputArtifact(
        asset=asset, partition=partition, fingerprint=fingerprint, digest=found.digest, path=str(folder)
    )


def withdraw(name: str) -> None:
    """Build a recipe's corpus, withdraw one page of each snapshot by a takedown list, and build it again."""
    recipe = load_recipe(name)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        first = corpus_of(recipe, place / "root")
        told("first build", first, first)
        for snapshot in recipe.snapshots:
            item = first[f"decontaminated_documents [{recipe.name}@{snapshot.name}]"]
            page = next(read_documents(document_files(item)[1], ["id"]))["id"]
            path = place / f"{snapshot.name}.txt"
            path.write_text(f"{page}\n")
            less = replace(recipe, extract=replace(recipe.extract, takedown=(str(path),)))
            told(f"a page less in {snapshot.name}", corpus_of(less, place / "root"), first)


def withdraw_under(root: Path, name: str, folder: Path | None, wanted: Sequence[str]) -> None:
    """Withdraw 1 % of the pages of a root in several ways, and compare each rebuild with the corpus."""
    first = corpus_under(root, name)
    told("as it was made", first, first)
    pages, kept = (_pages(first, asset) for asset in ("extracted_documents", "decontaminated_documents"))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        for case, (title, named) in cases_of(pages, kept, place).items():
            if case not in wanted:
                continue
            own = copied(root, place / case)
            given = ("takedown", *named, "--reason", "to measure", "--yes", "--no-rebuild", "--root", str(own))
            subprocess.run(command(*given), check=True, stdout=subprocess.DEVNULL)
            for asset in to_rebuild(own, name):
                subprocess.run(command("run", name, "--until", asset, "--root", str(own)), check=True)
            told(f"{title} of {len(pages):,} pages", corpus_under(own, name), first)
            shutil.rmtree(own)


def cases_of(
    pages: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]], place: Path
) -> dict[str, tuple[str, tuple[str, str]]]:
    """Return, for each case, a title and the option that names its pages. Lists of pages are written into `place`.

    The neighbours are among those that were kept, because a page that a filter drops costs less.
    """
    hosts = Counter(plain_host(key_of(row["url"]).host) for row in pages)
    host = min(hosts, key=lambda one: abs(hosts[one] - len(pages) / 100))
    number = max(1, round(len(pages) / 100))
    by_archive: dict[str, list[str]] = {}
    for row in kept:
        by_archive.setdefault(row["id"].rpartition("/")[0], []).append(row["id"])
    large_enough = sorted((one for one in by_archive.values() if len(one) >= number), key=len)
    archive = large_enough[len(large_enough) // 2]  # the cost of a rank grows with its archive
    start = (len(archive) - number) // 2
    scattered = [row["id"] for row in pages][:: len(pages) // number][:number]
    lists = {"neighbours": archive[start : start + number], "scattered": scattered}
    for case, ids in lists.items():
        (place / f"{case}.txt").write_text("".join(f"{id_}\n" for id_ in ids), "utf-8")
    where = {case: len({id_.rpartition("/")[0] for id_ in ids}) for case, ids in lists.items()}
    return {"domain": (f"{host}, {hosts[host]:,}", ("--domain", host))} | {
        case: (f"{case}, in {where[case]} archives, {len(ids):,}", ("--list", str(place / f"{case}.txt")))
        for case, ids in lists.items()
    }


def corpus_under(root: Path, name: str) -> Built:
    """Return the corpus of a recipe as it is under a root."""
    cells = compare(load_recipe(name, recipe_folders(root)), root).cells.values()
    return {
        f"{cell.asset} [{cell.partition}]": item_of(cell.artifact)
        for cell in cells
        if cell.asset in CORPUS and cell.artifact is not None
    }


def _pages(built: Built, asset: str) -> list[dict[str, Any]]:
    items = [item for item in built.values() if item.asset == asset]
    return [row for item in items for file in document_files(item) for row in read_documents(file, PAGE)]


def corpus_of(recipe: Recipe, root: Path) -> Built:
    """Make what a recipe asks for up to its token shards, each job in a process of its own."""
    built: Built = {}
    for cell in compare(recipe, root).to_do("token_shards"):
        comparison = compare(recipe, root)
        job = job_of(comparison.cells[cell.key], comparison, Size(workers=1))
        made_by_process(job)
        found = artifact.find(Path(job.output))
        assert found is not None
        write_reference(root, found, cell.partition)
    for cell in compare(recipe, root).cells.values():
        if cell.artifact is not None and cell.state == "made":
            built[f"{cell.asset} [{cell.partition}]"] = InputArtifact(
                asset=cell.asset,
                partition=cell.partition,
                fingerprint=cell.fingerprint,
                digest=cell.artifact.digest,
                path=str(cell.artifact.path),
            )
    return built


def made_by_process(job: Job) -> None:
    """Run a job in a new process, unless its artifact exists; return the artifact."""
    folder = Path(job.output)
    if artifact.find(folder) is None:
        write_job(job, folder / "job.json")
        argv = [sys.executable, "-m", STAGES[job.stage].package, f"{folder}/job.json"]
        ran = subprocess.run(argv, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{job.asset}: {ran.stderr}")


def told(case: str, built: Built, first: Built) -> None:
    """Print the computed ranks and processor seconds of a build, compared with the first build.

    Assets that the first build made already cost nothing.
    """
    total, before = 0.0, 0.0
    print(f"\n{case}\n{'asset':>48} {'ranks made':>12} {'CPU s':>8} {'first':>8} {'÷':>6}")
    for asset in first:
        record, earlier = built[asset].record(), first[asset].record()
        is_same = built is not first and built[asset].fingerprint == first[asset].fingerprint
        spent, cost = (0.0 if is_same else record["cost"]["cpu_seconds"]), earlier["cost"]["cpu_seconds"]
        total, before = total + spent, before + cost
        ranks = "" if is_same else ranks_made(built[asset])
        print(f"{asset:>48} {ranks:>12} {spent:8.2f} {cost:8.2f} {spent / cost:6.3f}")
    print(f"{'all':>48} {'':>12} {total:8.2f} {before:8.2f} {total / before:6.3f}", flush=True)


def ranks_made(item: InputArtifact) -> str:
    """Return `computed ranks of all ranks` of an artifact, as text; `whole` for a stage without ranks."""
    record = item.record()
    if "ranks" not in record:
        return "whole"
    index = Path(item.path, "reuse", "marks.jsonl").read_text().count("\n")
    return f"{index - record.get('reused_ranks', {'ranks': 0})['ranks']} of {index}"


if __name__ == "__main__":
    main()

"""How fast and how small provenance is: the index of every page, and the questions of `pedigree trace`.

    python -m benchmarks.trace [--pages 1000000] [--growth 1,4,16] [--both-ways 1000] [--root ROOT]
                               [--model MODEL] [--folder FOLDER]

Pages are generated: in each archive 30 % end in a shard, 15 % are dropped by the extraction, 1 % quarantined, 40 %
dropped by a filter, 13 % are duplicates, 1 % contaminated. One process builds the index in one worker; another one has
a plan of three epochs over the shards and asks. First, --both-ways documents are followed from their page to their
steps and back, which must agree exactly; a difference ends the benchmark with exit code 1. Then it times steps, URLs
and domains: opening everything and the first question with the files out of the page cache (cold), and the median of
many (warm). The question "takedown" is what a takedown of a domain asks the indexes before it changes anything; reading
recipes and records comes on top, and does not grow with the pages. Printed are also the bytes of the index for each
page, processor seconds, and the peak of memory.

With --root the same questions are asked of a model under that root, from its WARC files on; up to half of the pages are
those of random steps. With --control row the way back must differ, and the exit code be 1. --growth repeats all for
multiples of --pages / the largest multiple. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PAGES_PER_ARCHIVE = 30_000  # about as many as an archive of Common Crawl has
HOSTS_PER_PAGE = 0.1
ROW_TOKENS, MOST_ROWS, EPOCHS = 4_096, 1_024, 3.0
ASKED = 200  # pages and steps to ask about
TIMED = 50  # warm questions of each kind


def main() -> None:
    """Measure generated pages at several sizes, or a root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=1_000_000, help="of the largest size")
    parser.add_argument("--growth", default="1", help="sizes in turn; the last is --pages")
    parser.add_argument("--both-ways", type=int, default=1_000)
    parser.add_argument("--root", type=Path, help="measure a model under this root instead")
    parser.add_argument("--model", default="kitchen")
    parser.add_argument("--folder", type=Path, help="where the files go; a folder of its own by default")
    parser.add_argument("--control", choices=("row",), help="alter the row of each step; this must be noticed")
    parser.add_argument("--part", choices=("generate", "build", "ask", "root"), help="used by the benchmark itself")
    parser.add_argument("--place", type=Path, help="used by the benchmark itself")
    options = parser.parse_args()
    if options.part:
        told = {"generate": generate, "build": build, "ask": ask, "root": ask_root}[options.part](options)
        print(json.dumps({**told, **spent()}))
    elif options.root:
        show(f"{options.model} under {options.root}", run("root", options, options.pages, options.root))
    else:
        multiples = [int(one) for one in options.growth.split(",")]
        for multiple in multiples:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                measure(Path(folder), options, options.pages * multiple // multiples[-1])


def measure(folder: Path, options: argparse.Namespace, pages: int) -> None:
    """Generate, build and ask in processes of their own, and print what each took."""
    made = run("generate", options, pages, folder)
    built = run("build", options, pages, folder)
    show(f"{made['pages']:,} pages, {made['kept']:,} in shards, built", built)
    show(f"{made['pages']:,} pages, asked", run("ask", options, pages, folder))


def run(part: str, options: argparse.Namespace, pages: int, place: Path) -> dict[str, Any]:
    """What a process that does one part prints last."""
    argv = [sys.executable, "-m", "benchmarks.trace", "--part", part, "--pages", str(pages), "--place", str(place)]
    argv += ["--both-ways", str(options.both_ways), "--model", options.model]
    argv += ["--control", options.control] if getattr(options, "control", None) else []
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()})
    if done.returncode:
        sys.exit(1)
    return json.loads(done.stdout.splitlines()[-1])


def show(title: str, told: dict[str, Any]) -> None:
    """Print the figures of one process."""
    print(title, flush=True)
    for name, value in told.items():
        print(f"  {name.replace('_', ' '):28} {value:,.4g}" if isinstance(value, float) else f"  {name:28} {value:,}")


def spent() -> dict[str, float]:
    """Processor seconds and the peak of memory of this process and of its children, in MB."""
    import resource

    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "processor_seconds": sum(one.ru_utime + one.ru_stime for one in usages),
        "peak_mb": max(one.ru_maxrss for one in usages) / 1e3,
    }


def generate(options: argparse.Namespace) -> dict[str, Any]:
    """Write the pages, and a plan of three epochs over their shards."""
    from tests.training.pretrain import tiny
    from tests.training.provenance.pages import generated
    from training.order import plan as plan_stage
    from training.order.settings import MixtureRecipe
    from training.pretrain.settings import PretrainRecipe

    archives = max(1, round(options.pages / PAGES_PER_ARCHIVE))
    tokenizer = tiny.make_tokenizer(options.place / "tokenizer" / "t")
    pages = generated(
        options.place,
        "2026-05",
        ranks=archives,
        pages=options.pages // archives,
        hosts=max(10, int(options.pages * HOSTS_PER_PAGE)),
        tokenizer=tokenizer,
    )
    rows = min(MOST_ROWS, max(1, options.pages // 1_000))
    pretrain = PretrainRecipe(tokens="auto", sequence_length=ROW_TOKENS, global_batch_tokens=rows * ROW_TOKENS)
    settings = {"mixture": MixtureRecipe(max_epochs=EPOCHS), "pretrain": pretrain.batches}
    job = tiny.job_of("plan", settings, (pages.shards, tokenizer), options.place / "training_plan" / "p")
    work = tiny.work_in(Path(job.output))
    outcome = plan_stage.run(job, work)
    tiny.commit(Path(job.output), "training_plan", list(outcome.files))
    kept = int(outcome.counts.kept) if outcome.counts else 0
    _note_crawl(options.place)
    return {"pages": len(pages.truth), "kept": kept, "archives": archives}


def _note_crawl(place: Path) -> None:
    """Write into the record of the extraction that it read a crawl, by which a takedown names snapshots."""
    (folder,) = (place / "extracted_documents").iterdir()
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    crawl = {"asset": "crawl_archives", "partition": record["partition"], "fingerprint": "0" * 32, "digest": "0" * 64}
    (folder / "artifact.json").write_text(json.dumps({**record, "inputs": [crawl]}), "utf-8")


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Build the index in one worker."""
    from tests.training.data import chain

    inputs = _inputs(options.place)
    begun = time.perf_counter()
    made = chain.run(options.place, "provenance", "provenance_index", inputs[0].partition, {}, inputs)
    seconds = time.perf_counter() - begun
    metrics = made.record()["metrics"]
    pages = max(1.0, metrics["pages"])
    return {
        "seconds": seconds,
        "microseconds_a_page": 1e6 * seconds / pages,
        "bytes_a_page": metrics["bytes"] / pages,
        "hosts": metrics["hosts"],
    }


def _inputs(place: Path) -> list[Any]:
    from training import artifact
    from training.job import InputArtifact
    from training.provenance.lineage import CORPUS_BACKWARDS

    found = []
    for asset in reversed(CORPUS_BACKWARDS):
        (folder,) = (place / asset).iterdir()
        record = json.loads((folder / artifact.ARTIFACT_FILE).read_text("utf-8"))
        named = {name: record[name] for name in ("asset", "partition", "fingerprint", "digest")}
        found.append(InputArtifact(**named, path=str(folder)))
    return found


def ask(options: argparse.Namespace) -> dict[str, Any]:
    """Follow documents both ways, and time questions to generated pages."""
    from tests.training.pretrain import tiny
    from training.job import InputArtifact
    from training.order.batches import read_plan
    from training.order.ledger import Ledger
    from training.provenance.lineage import Lineage, Node, Training, opened
    from training.provenance.trace import Tracer

    inputs = {item.asset: item for item in _inputs(options.place)}
    nodes = {item.fingerprint: Node(item=item, made=None) for item in inputs.values()}
    (folder,) = (options.place / "provenance_index").iterdir()
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    item = InputArtifact(
        asset="provenance_index",
        partition=record["partition"],
        fingerprint=record["fingerprint"],
        digest=record["digest"],
        path=str(folder),
    )
    plan_folder = options.place / "training_plan" / "p"
    plan_item = tiny.commit(plan_folder, "training_plan", [one.name for one in _plan_files(plan_folder)])

    def tracer() -> Tracer:
        made = Tracer(Lineage(options.place, nodes))
        shards = Node(item=inputs["token_shards"], made=None)
        made.indexes = [opened(item, inputs)]
        made.trainings = [Training(shards, plan_item, read_plan(plan_folder), Ledger())]
        return made

    return timed(tracer, options, [folder, plan_folder])


def _plan_files(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.suffix in (".npy", ".json") and one.name != "artifact.json"]


def ask_root(options: argparse.Namespace) -> dict[str, Any]:
    """The same for a model under a root, whose documents are followed from their WARC record on."""
    from assets.trace import meant, versions_of
    from resources.tracking.reports import Tracking
    from training.data.known import known_under
    from training.provenance.lineage import lineage_of
    from training.provenance.trace import Tracer

    root = options.place.resolve()
    model = meant(options.model, root, versions_of(Tracking("", root, in_background=False)))
    with known_under(root):
        indexes = list((root / "provenance_index").iterdir())
        told = timed(lambda: Tracer(lineage_of(root, *model.made)), options, indexes, root)
    return {**told, "share_of_corpus_half": share_of_corpus_half(root, "provenance_index")}


def share_of_corpus_half(root: Path, index: str) -> float:
    """Return the processor seconds of an index's artifacts ÷ those of everything from the crawl to the shards.

    Both are read from the records under `root`.
    """
    from assets.chain import ancestors

    half = sum(_processor_seconds(root, asset) for asset in ("token_shards", *ancestors("token_shards")))
    return _processor_seconds(root, index) / half


def _processor_seconds(root: Path, asset: str) -> float:
    records = [json.loads(file.read_text("utf-8")) for file in root.glob(f"{asset}/*/artifact.json")]
    return sum(record["cost"]["cpu_seconds"] for record in records)


def timed(
    make: Callable[[], Any], options: argparse.Namespace, cold: Sequence[Path], root: Path | None = None
) -> dict[str, Any]:
    """Follow documents both ways, then time the three kinds of questions."""
    tracer = make()
    tracer.trainings, tracer.indexes  # noqa: B018
    if getattr(options, "control", None) == "row":
        _alter_rows()
    chance = random.Random(0)
    rows = _some_pages(tracer, chance, max(options.both_ways, ASKED))
    if root is not None:
        read = _read_pages(tracer, chance, options.both_ways // 2)
        known = {row["id"] for row in read}
        rows = [*read, *(row for row in rows if row["id"] not in known)]
    seen, warc = both_ways(tracer, rows[: options.both_ways], root)
    training = tracer.trainings[0]
    steps = [chance.randrange(training.plan.record.steps) for _ in range(ASKED)]
    hosts = sorted({row["url"].split("/")[2] for row in rows})
    questions: dict[str, Callable[[int], Any]] = {
        "step": lambda number: tracer.step(steps[number % len(steps)], training=training.name),
        "url": lambda number: tracer.url(rows[number % len(rows)]["url"]),
        "domain": lambda number: tracer.domain(hosts[number % len(hosts)], shown=1),
        "takedown": lambda number: withdrawal(tracer, hosts[number % len(hosts)]),
    }
    told: dict[str, Any] = {"both_ways": len(rows[: options.both_ways]), "of_them_in_steps": seen, "warc_records": warc}
    told["documents_of_a_step"] = len(tracer.step(0, training=training.name)["documents"])
    opened: list[Any] = []
    for name, question in questions.items():
        _forget(cold)
        opening = _ms(lambda _: opened.append(make()), 0)
        tracer = opened.pop()
        first = _ms(question, ASKED - 1)
        told[f"{name}_cold_ms"], told[f"{name}_cold_processor_ms"] = (
            sum(one) for one in zip(opening, first, strict=True)
        )
        every = [_ms(question, number) for number in range(TIMED)]
        told[f"{name}_warm_ms"] = median(wall for wall, _ in every)
        told[f"{name}_warm_processor_ms"] = median(processor for _, processor in every)
        told[f"{name}_slowest_processor_ms"] = max(processor for _, processor in every)
    return told


def withdrawal(tracer: Any, host: str) -> Any:
    """Return what a takedown of a domain asks the indexes: its pages and duplicates, what holds and what saw them."""
    import numpy as np

    from training.provenance.withdrawal import duplicates_of, pages_of, seen_by, target_of, told_of

    target = target_of("domain", host)
    pages = [pages_of(index, target) for index in tracer.indexes]
    more = duplicates_of(tracer.indexes, pages)
    every = [np.union1d(own, np.fromiter(some, np.int64)) for own, some in zip(pages, more, strict=True)]
    told = [told_of(index, own) for index, own in zip(tracer.indexes, every, strict=True)]
    known = {index.item.fingerprint: own for index, own in zip(tracer.indexes, every, strict=True)}
    also = [id_ for own in more for id_ in own.values()]
    return told, seen_by(tracer, [target], also, known)


def _ms(question: Callable[[int], Any], number: int) -> tuple[float, float]:
    """How long a question takes, by the clock and by the processor, in milliseconds."""
    begun, busy = time.perf_counter(), time.process_time()
    question(number)
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.process_time() - busy)


def _forget(folders: Sequence[Path]) -> None:
    """Drop the files from the page cache, and what this process knows of them."""
    from training.files import checked

    checked._sound.clear()
    for folder in folders:
        for file in folder.rglob("*"):
            if file.is_file():
                with open(file, "rb") as stream:
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _some_pages(tracer: Any, chance: random.Random, number: int) -> list[dict[str, Any]]:
    """Random pages of all snapshots, whatever became of them, with id and URL."""
    import numpy as np

    sizes = np.cumsum([0, *(len(index) for index in tracer.indexes)])
    chosen = np.array(sorted(chance.sample(range(sizes[-1]), min(number, int(sizes[-1])))), np.int64)
    found: list[dict[str, Any]] = []
    for index, first, stop in zip(tracer.indexes, sizes, sizes[1:], strict=False):
        own = chosen[(chosen >= first) & (chosen < stop)] - first
        found += [one.row for one in index.rows(own) if one.row["url"]]
    chance.shuffle(found)
    return found


def _read_pages(tracer: Any, chance: random.Random, number: int) -> list[dict[str, Any]]:
    """Return at most so many pages that random steps read: few of a large crawl are in a step of a small model."""
    training, found = tracer.trainings[0], dict[str, dict[str, Any]]()
    steps = list(range(training.plan.record.steps))
    chance.shuffle(steps)
    for step in steps:
        if len(found) >= number:
            break
        found |= {one["id"]: one for one in tracer.step(step, training=training.name)["documents"]}
    return list(found.values())[:number]


def both_ways(tracer: Any, rows: Sequence[dict[str, Any]], root: Path | None) -> tuple[int, int]:
    """Follow pages to their steps and back. Return how many were in a step, and how many WARC records were read.

    Exit with code 1 at the first difference.
    """
    seen = warc = 0
    for row in rows:
        (page,) = tracer.document(row["id"])["pages"]
        by_url = [one for one in tracer.url(row["url"])["pages"] if one["id"] == row["id"]]
        _same(
            row["id"], "by id and by URL", [page], [{k: v for k, v in one.items() if k != "is_exact"} for one in by_url]
        )
        if root is not None:
            _same(row["id"], "URL of the WARC record", row["url"], record_url(root, page))
            warc += 1
        for training in page["seen"]:
            for step in sorted({one["step"] for one in training["steps"]}):
                batch = tracer.step(step, training=training["training"])["documents"]
                back = [piece for one in batch if one["id"] == row["id"] for piece in one["pieces"]]
                there = [one for one in training["steps"] if one["step"] == step]
                _same(row["id"], f"step {step}", [_place(one) for one in there], [_place(one) for one in back])
            seen += bool(training["steps"])
    return seen, warc


def _alter_rows() -> None:
    """Let every document be one row further than it is."""
    from training.provenance.steps import Steps

    seen = Steps.seen

    def altered(steps: Steps, documents: Sequence[int]) -> Any:
        return {name: [one._replace(row=one.row + 1) for one in some] for name, some in seen(steps, documents).items()}

    Steps.seen = altered


def _place(piece: dict[str, Any]) -> list[int]:
    return [piece[name] for name in ("row", "at", "start", "tokens")]


def record_url(root: Path, page: Mapping[str, Any]) -> str:
    """Return the URL of the WARC record at a page's offset."""
    from fastwarc.warc import ArchiveIterator

    crawls = [
        file.parent for file in root.glob("crawl_archives/*/artifact.json") if _snapshot(file) == page["snapshot"]
    ]
    archive = next(file for folder in crawls for file in folder.glob(f"**/{page['warc_file']}"))
    with open(archive, "rb") as stream:
        stream.seek(page["warc_offset"])
        uri = next(iter(ArchiveIterator(stream, parse_http=False))).headers["WARC-Target-URI"]
    return uri.strip("<>")  # Wget writes URLs in angle brackets


def _snapshot(record: Path) -> str:
    return json.loads(record.read_text("utf-8"))["partition"].partition("@")[2]


def _same(id_: str, what: str, one: Any, other: Any) -> None:
    if one != other:
        print(f"{id_}: {what} differs: {one} and {other}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

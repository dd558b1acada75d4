"""Follow pages of a model under a root from their WARC record to every step that saw them, and back.

    python -m benchmarks.both_ways --root ROOT --model MODEL [--documents 1000] [--control row]

Up to half of the pages are those of random steps, the others are random pages of all snapshots. Printed is how many
pages were followed, and how many of them are in a step. The exit code is 1 at the first difference. With --control row
the way back must differ.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastwarc.warc import ArchiveIterator

from assets.answers.trace.trace import meant, versions_of
from resources.tracking.reports import Tracking
from training.data.checksum_cache import known_under
from training.provenance.lineage import lineage_of
from training.provenance.steps import Steps
from training.provenance.trace import Tracer


def main() -> None:
    """Follow the pages and print how many there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--model", default="kitchen")
    parser.add_argument("--documents", type=int, default=1_000)
    parser.add_argument("--control", choices=("row",), help="alter the row of each step; this must be noticed")
    options = parser.parse_args()
    root, chance = options.root.resolve(), random.Random(0)
    if options.control:
        alter_rows()
    model = meant(options.model, root, versions_of(Tracking("", root, in_background=False)))
    with known_under(root):
        tracer = Tracer(lineage_of(root, *model.made))
        read = _read_pages(tracer, chance, options.documents // 2)
        known = {row["id"] for row in read}
        some = [row for row in _some_pages(tracer, chance, options.documents) if row["id"] not in known]
        rows = [*read, *some][: options.documents]
        seen = both_ways(tracer, rows, root)
    print(json.dumps({"documents": len(rows), "in_steps": seen}))


def _some_pages(tracer: Any, chance: random.Random, number: int) -> list[dict[str, Any]]:
    """Random pages of all snapshots, whatever became of them, with id and URL."""
    sizes = np.cumsum([0, *(len(index) for index in tracer.indexes)])
    chosen = np.array(sorted(chance.sample(range(sizes[-1]), min(number, int(sizes[-1])))), np.int64)
    found: list[dict[str, Any]] = []
    for index, first, stop in zip(tracer.indexes, sizes, sizes[1:], strict=False):
        own = chosen[(chosen >= first) & (chosen < stop)] - first
        found += [one.row for one in index.rows(own) if one.row["url"]]
    chance.shuffle(found)
    return found


def _read_pages(tracer: Any, chance: random.Random, number: int) -> list[dict[str, Any]]:
    """Return the documents that randomly drawn training steps read, `number` of them at most.

    Of a large crawl a small model reads few pages, so pages drawn from the index alone would hardly ever be in a step.
    """
    training, found = tracer.trainings[0], dict[str, dict[str, Any]]()
    steps = list(range(training.plan.record.steps))
    chance.shuffle(steps)
    for step in steps:
        if len(found) >= number:
            break
        found |= {one["id"]: one for one in tracer.step(step, training=training.name)["documents"]}
    return list(found.values())[:number]


def both_ways(tracer: Any, rows: Sequence[dict[str, Any]], root: Path) -> int:
    """Follow pages to their steps and back; return how many were in a step. Exit with code 1 at a difference."""
    seen = 0
    for row in rows:
        (page,) = tracer.document(row["id"])["pages"]
        by_url = [one for one in tracer.url(row["url"])["pages"] if one["id"] == row["id"]]
        _same(
            row["id"], "by id and by URL", [page], [{k: v for k, v in one.items() if k != "is_exact"} for one in by_url]
        )
        _same(row["id"], "URL of the WARC record", row["url"], record_url(root, page))
        for training in page["seen"]:
            for step in sorted({one["step"] for one in training["steps"]}):
                batch = tracer.step(step, training=training["training"])["documents"]
                back = [piece for one in batch if one["id"] == row["id"] for piece in one["pieces"]]
                there = [one for one in training["steps"] if one["step"] == step]
                _same(row["id"], f"step {step}", [_place(one) for one in there], [_place(one) for one in back])
            seen += bool(training["steps"])
    return seen


def alter_rows() -> None:
    """Let every document be one row further than it is."""
    seen = Steps.seen

    def altered(steps: Steps, documents: Sequence[int]) -> Any:
        return {name: [one._replace(row=one.row + 1) for one in some] for name, some in seen(steps, documents).items()}

    Steps.seen = altered


def _place(piece: dict[str, Any]) -> list[int]:
    return [piece[name] for name in ("row", "at", "start", "tokens")]


def record_url(root: Path, page: Mapping[str, Any]) -> str:
    """Return the URL of the WARC record at a page's offset."""
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

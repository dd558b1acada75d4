"""Measure the seconds that `pedigree takedown --dry-run` takes in a generated corpus of many pages.

    python -m benchmarks.dry_run [--pages 10000000] [--growth 1,4,16] [--folder FOLDER] [--keep]

The pages, their shards, a plan of three epochs and the index are made as in `benchmarks.trace`. Around them lies a root
that `pedigree run` has made of a small crawl: its records become those of the generated artifacts, and a base model of
the plan is added, of which only the record is real. Then the command is given for domains from one page to 1 % of all
pages, each as a process of its own: once with the files out of the page cache and without a table of checksums (cold),
and three times more, of which the median is printed. Printed are seconds by the clock, processor seconds, and the peak
of memory, start of Python and imports included. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assets.status import write_reference
from benchmarks.reuse import archives
from benchmarks.trace import HOSTS_PER_PAGE, _forget, run
from training import artifact
from training.artifact import Artifact
from training.data.known import TABLE_FILE
from training.provenance.lineage import CORPUS_BACKWARDS

RECIPE = """\
extends: base
name: tiny
snapshots: [{name: 2026-05, source: warc, paths: [CRAWL]}]
filter: {rules: [gopher_quality, c4], gopher_min_words: 20}
tokenizer: {vocabulary: 4000, min_bytes_per_token: 1.0}
"""
HOSTS = (0, 10, 1_000, 30_000)  # the lower the number, the more pages a host has; the last host has one or none
TIMES = 3
GENERATED = (*reversed(CORPUS_BACKWARDS),)


def main() -> None:
    """Make a root for each size, and time the command in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10_000_000, help="of the largest size")
    parser.add_argument("--growth", default="1", help="sizes in turn; the last is --pages")
    parser.add_argument("--folder", type=Path, help="where the roots go; a folder of its own by default")
    parser.add_argument("--keep", action="store_true", help="leave the roots in --folder, and use those that are there")
    options = parser.parse_args()
    multiples = [int(one) for one in options.growth.split(",")]
    options.both_ways, options.model = 0, ""
    print("| pages | of the domain | cold, s | processor, s | warm, s | processor, s | peak, MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        for multiple in multiples:
            pages = options.pages * multiple // multiples[-1]
            place = (options.folder if options.keep else Path(temporary)) / f"{pages}"
            if not (place / "recipes").exists():
                place.mkdir(parents=True, exist_ok=True)
                run("generate", options, pages, place)
                run("build", options, pages, place)
                complete(place)
            measure(place, pages)


def complete(place: Path) -> None:
    """Make the folder of generated artifacts a root: with a crawl, records, references and a base model."""
    options = argparse.Namespace(files=1, pages=200)
    crawl = archives(place / "crawl", options, 0)
    (place / "recipes").mkdir()
    (place / "recipes" / "tiny.yaml").write_text(RECIPE.replace("CRAWL", str(crawl)), "utf-8")
    generated = {asset: next((place / asset).iterdir()) for asset in (*GENERATED, "provenance_index", "training_plan")}
    for asset, folder in generated.items():
        folder.rename(place / f"generated-{asset}")  # what `pedigree run` makes stands there meanwhile
    shutil.rmtree(place / "tokenizer")
    command = [sys.executable, "-c", "from assets.cli import main; main()", "run", "tiny", "--root", str(place)]
    subprocess.run([*command, "--until", "provenance_index"], check=True, stdout=sys.stderr)
    subprocess.run([*command, "--until", "training_plan"], check=True, stdout=sys.stderr)
    made = [committed(place, asset, generated[asset].name) for asset in GENERATED]
    index = committed(place, "provenance_index", generated["provenance_index"].name, made)
    plan = committed(place, "training_plan", "", [made[-1]])
    model = artifact.folder_of(place, "base_model", plan.fingerprint[::-1])
    model.mkdir(parents=True)
    named = {"asset": "base_model", "fingerprint": model.name, "inputs": [_input(one) for one in (made[-1], plan)]}
    artifact.commit_record(model, plan.record | named | {"files": [], "digest": artifact.digest_of_files([])})
    for one in (*made, index, plan):
        write_reference(place, one, one.record["partition"])


def committed(place: Path, asset: str, name: str, inputs: list[Artifact] | None = None) -> Artifact:
    """Put a generated artifact where the real one is, with the real one's record."""
    (real,) = (artifact.find(path.parent) for path in place.glob(f"{asset}/*/artifact.json"))
    assert real is not None
    folder = place / f"generated-{asset}"
    own = json.loads((folder / artifact.ARTIFACT_FILE).read_text("utf-8"))
    fields = {name: own[name] for name in ("files", "digest", "counts") if name in own}
    fields["fingerprint"] = own["fingerprint"] if len(own["fingerprint"]) == 32 else real.fingerprint
    if inputs is not None:
        others = [one for one in real.record["inputs"] if one["asset"] not in {made.record["asset"] for made in inputs}]
        fields["inputs"] = [*others, *map(_input, inputs)]
    else:
        before = GENERATED[: GENERATED.index(asset)]
        made = [artifact.find(next((place / one).iterdir())) for one in before]
        known = {one.record["asset"]: _input(one) for one in made if one}
        fields["inputs"] = [known.get(one["asset"], one) for one in real.record["inputs"]]
    shutil.rmtree(real.path)
    target = artifact.folder_of(place, asset, fields["fingerprint"])
    folder.rename(target)
    artifact.commit_record(target, real.record | fields)
    found = artifact.find(target)
    assert found is not None
    return found


def _input(made: Artifact) -> dict[str, Any]:
    named = {name: made.record[name] for name in ("asset", "partition", "fingerprint", "digest")}
    return named | {"record_digest": made.record_digest}


def measure(place: Path, pages: int) -> None:
    """Print a line for each domain."""
    hosts = max(10, int(pages * HOSTS_PER_PAGE))
    for host in HOSTS:
        if host >= hosts:
            continue
        domain = f"site-{host}.{'com' if host % 3 else 'co.uk'}"
        (place / TABLE_FILE).unlink(missing_ok=True)
        _forget([path for path in place.iterdir() if path.is_dir()])
        cold = asked(place, domain)
        warm = [asked(place, domain) for _ in range(TIMES)]
        middle = [statistics.median(one[name] for one in warm) for name in ("seconds", "processor")]
        cells = [f"{pages:,}", f"{cold['pages']:,}", *(f"{cold[name]:.2f}" for name in ("seconds", "processor"))]
        cells += [*(f"{one:.2f}" for one in middle), f"{max(one['peak'] for one in [cold, *warm]):,.0f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def asked(place: Path, domain: str) -> dict[str, float]:
    """Give the command once; return what it took, and how many pages it found."""
    command = ["takedown", "--domain", domain, "--reason", "to measure", "--dry-run", "--json", "--root", str(place)]
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", "from assets.cli import main; main()", *command], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.read().splitlines()[-1])
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit code {process.returncode}")
    return {"seconds": time.perf_counter() - begun, "pages": told["pages"], **_spent(used)}


def _spent(used: resource.struct_rusage) -> dict[str, float]:
    return {"processor": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1e3}


if __name__ == "__main__":
    main()

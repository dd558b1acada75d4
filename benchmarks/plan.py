"""Measure the cost of a training plan: bytes on disk, and memory and seconds of the planner and of a training process.

    python -m benchmarks.plan [--documents 10000000] [--code FOLDER] [--steps 100] [--folder FOLDER]
    python -m benchmarks.plan --documents 100000000 --mean-tokens 10000 --shard-documents 5000   # 4 TB, a short plan

The shards are generated: the document lengths of one shard are written, and all other shards are links to its files, so
that a corpus of terabytes takes megabytes. Token files are sparse and empty. Ids are the same in
every shard, which does not change the cost: each is read and hashed.

Three processes run one after the other. The planner runs the stage `plan` for one epoch. A training process (the middle
one of --processes) verifies its part of the files, opens plan and shards, and makes the samples of --steps steps that
are drawn from the whole run; then it makes them again, and reads eight rows of each. A third process does the same from
the middle of the run on, step after step, as after resuming. Printed are the peak of memory (VmHWM, in which mapped
files count) before token files are read, the anonymous memory then, and the bytes of all read calls. `--code` is
another checkout to measure, such as an older one. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.training.pretrain import tiny
from training.contract import artifact
from training.contract.job import InputArtifact, Job, write_job
from training.contract.records import differing_from_defaults
from training.order.settings import MixtureRecipe
from training.pretrain.settings import PretrainRecipe

SEQUENCE_LENGTH = 4_096
ROWS = 1_024  # in a batch

# What both versions have. Each prints one JSON object.
COMMON = """
import json, os, random, sys, time
from pathlib import Path
def told(**more):
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    kilobytes = {name: int(status[name].split()[0]) for name in ("VmHWM", "RssAnon")}
    print(json.dumps({**kilobytes, "rchar": int(io["rchar"]), **more}))
"""
PLANNER = (
    COMMON
    + """
from tests.training.pretrain import tiny
from training.contract.job import read_job
from training.order import plan
job = read_job(sys.argv[1])
work = tiny.work_in(Path(job.output))
begun = time.perf_counter(), time.process_time()
outcome = plan.run(job, work)
told(seconds=time.perf_counter() - begun[0], processor=time.process_time() - begun[1], files=list(outcome.files))
"""
)
TRAINING = (
    COMMON
    + """
from training.contract.job import read_job
from training.order import batches
from training.pretrain.parallel import input_verification
job, count, size, is_resumed = read_job(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "resumed"
class World:
    rank, size = int(sys.argv[3]) // 2, int(sys.argv[3])
    def first_said(self, said): return said
io = lambda: int(open("/proc/self/io").readline().split()[1])
begun, read = time.perf_counter(), io()
plan_item, shards = job.inputs[0], job.inputs[1:]
input_verification.check_by_share(plan_item, shards, World())
plan = batches.read_plan(Path(plan_item.path), digest=plan_item.digest)
opened = batches.open_shards(plan, {item.fingerprint: item for item in shards}, verify=True)
ready = time.perf_counter()
draw, steps = random.Random(0), plan.record.steps
chosen = range(steps // 2, steps // 2 + count) if is_resumed else [draw.randrange(steps) for _ in range(count)]
def timed(work):
    taken = []
    for step in chosen:
        began = time.process_time()
        work(step)
        taken.append(time.process_time() - began)
    return taken
indexed = timed(lambda step: batches.index(plan, step))
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
peak, anonymous = (int(status[name].split()[0]) for name in ("VmHWM", "RssAnon"))
length = plan.record.sequence_length
read_rows = timed(lambda step: opened.rows(batches.index(plan, step)[:8], length=length))
middle = lambda taken: sorted(taken)[len(taken) // 2]
told(start=ready - begun, first=indexed[0], median=middle(indexed), rows=middle(read_rows), read=io() - read,
     steps=steps, before_rows={"VmHWM": peak, "RssAnon": anonymous})
"""
)


def main() -> None:
    """Measure, and print what each process needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--mean-tokens", type=int, default=1_000, help="of a document")
    parser.add_argument("--shard-documents", type=int, default=50_000, help="documents of a shard")
    parser.add_argument("--code", type=Path, default=Path.cwd(), help="the checkout that is measured")
    parser.add_argument("--held-out-fraction", type=float, default=0.01, help="0 leaves the hashing of ids away")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1_000, help="processes among which the checks are shared")
    parser.add_argument("--folder", type=Path, help="where the files go; a folder of its own by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        measure(Path(temporary), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Generate the shards, run the three processes and print their numbers."""
    tokenizer = tiny.make_tokenizer(folder / "tokenizer" / "t")
    shards = generated(
        folder / "token_shards" / "s",
        tokenizer,
        options.documents,
        mean_tokens=options.mean_tokens,
        shard_documents=options.shard_documents,
    )
    sizes = {name: entry["bytes"] for name, entry in shards.files().items()}
    tokens = sum(size for name, size in sizes.items() if name.endswith(".bin")) // 4
    beside = sum(sizes.values()) - 4 * tokens
    print(f"{options.documents:,} documents, {tokens:,} tokens ({4 * tokens / 1e12:.2f} TB), sidecars {beside:,} bytes")
    job = plan_job(folder, shards, tokenizer, held_out_fraction=options.held_out_fraction)
    made = told_by(PLANNER, options.code, job)
    files = made.pop("files")
    plan_bytes = sum(Path(job.output, name).stat().st_size for name in files)
    print(f"planner: {made['seconds']:.1f} s ({made['processor']:.1f} of the processor), {memory(made)};", end=" ")
    print(f"{plan_bytes:,} bytes on disk, {plan_bytes / options.documents:.2f} a document")
    plan = tiny.commit(Path(job.output), "training_plan", files)
    trained = replace(job, inputs=(plan, shards))
    share = (plan_bytes + 4 * tokens) / options.processes
    for how in ("started", "resumed"):
        row = told_by(TRAINING, options.code, trained, options.steps, options.processes, how)
        print(
            f"training, {how}: {row['start']:.2f} s to open, first step {1e3 * row['first']:.1f} ms of the processor,"
            f" then {1e3 * row['median']:.2f} ms (median of {options.steps} of {row['steps']:,}), with eight rows"
            f" {1e3 * row['rows']:.2f} ms; {memory(row['before_rows'])}; read {row['read']:,} bytes, share"
            f" {share:,.0f}: {row['read'] / share:.3f}"
        )


def memory(row: Mapping[str, int]) -> str:
    """Return the peak of all memory and the anonymous memory of a process, as text."""
    return f"peak {row['VmHWM'] / 1e6:.2f} GB, anonymous {row['RssAnon'] / 1e6:.2f} GB"


def generated(
    folder: Path, tokenizer: InputArtifact, documents: int, *, mean_tokens: int, shard_documents: int
) -> InputArtifact:
    """Make a `token_shards` artifact with `documents` documents.

    It has the files of one shard, and links to them for the others.
    """
    (folder / "shards").mkdir(parents=True)
    per_shard = min(documents, shard_documents)
    chance = np.random.Generator(np.random.Philox(0))
    tokens = 1 + (mean_tokens * chance.standard_exponential(per_shard)).astype(np.int64)
    first = folder / "shards" / "000000"
    with open(f"{first}.bin", "wb") as stream:
        stream.truncate(4 * int(tokens.sum()))
    np.save(f"{first}.offsets.npy", np.concatenate([[0], np.cumsum(tokens)]))
    ids = [f"2026-05/{number:05d}.warc.gz/{7919 * number % 10**9:012d}" for number in range(per_shard)]
    table = {"id": ids, "source": ["web"] * per_shard, "tokens": tokens, "bytes": 4 * tokens}
    pq.write_table(pa.table(table), f"{first}.documents.parquet", compression="zstd")
    suffixes = (".bin", ".offsets.npy", ".documents.parquet")
    entries = {suffix: artifact.manifest(folder, [f"shards/000000{suffix}"])[0] for suffix in suffixes}
    listing = {"tokenizer_digest": tokenizer.digest, "dtype": "uint32", "eos_id": tiny.EOS}
    artifact.write_json(folder / "shards.json", listing)
    files = artifact.manifest(folder, ["shards.json"])
    for number in range(documents // per_shard):
        for suffix, entry in entries.items():
            name = f"shards/{number:06d}{suffix}"
            if number:
                os.link(f"{first}{suffix}", folder / name)
            files.append({**entry, "path": name})
    files.sort(key=lambda entry: entry["path"])
    record = {"asset": "token_shards", "fingerprint": "s", "files": files, "gates": []}
    record["digest"] = artifact.digest_of_files(files)
    artifact.commit_record(folder, record)
    return InputArtifact(
        asset="token_shards", partition="made", fingerprint="s", digest=record["digest"], path=str(folder)
    )


def plan_job(folder: Path, shards: InputArtifact, tokenizer: InputArtifact, *, held_out_fraction: float) -> Job:
    """Return the planner's job: one epoch in batches of ROWS rows."""
    pretrain = PretrainRecipe(
        tokens="auto", sequence_length=SEQUENCE_LENGTH, global_batch_tokens=ROWS * SEQUENCE_LENGTH
    )
    settings = {
        "mixture": MixtureRecipe(max_epochs=1.0, held_out_fraction=held_out_fraction),
        "pretrain": pretrain.batches,
    }
    job = tiny.job_of("plan", settings, (shards, tokenizer), folder / "training_plan" / "p")
    # A version knows its own fields alone.
    return replace(job, settings={name: differing_from_defaults(section) for name, section in settings.items()})


def told_by(script: str, code: Path, job: Job, *arguments: object) -> dict[str, Any]:
    """Run a script with another checkout's code in a new process; return the JSON object that it prints last."""
    path = Path(job.output).with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_job(job, path)
    command = [sys.executable, "-c", script, str(path), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    done = subprocess.run(command, cwd=code, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()

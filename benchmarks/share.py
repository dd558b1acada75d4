"""Compare the bytes that all tasks of a stage read, as the kernel counts them, with the bytes of the stage's inputs.

    python -m benchmarks.share [--ranks 200] [--tasks 4] [--code FOLDER]

Incompressible document files of more than 1 MB are signed (stage `sign`) by the tasks of an array and one finishing
job, each a process of its own with one worker. Printed are, for each process, two numbers of /proc/PID/io at its end:
`rchar`, the bytes of all its read calls, code included, and `read_bytes`, the bytes from the disk after the inputs were
dropped from the page cache. A task without ranks shows what reading the code alone takes. `--code` is another checkout
to measure, such as an older one. Linux.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.training.data import chain
from training import artifact
from training.data.dedup.settings import DedupRecipe
from training.job import InputArtifact, Job, write_job
from training.records import write_record
from training.run_settings import RunSettings

TEXT_BYTES = 36_000  # of random bytes in a document; few and long words, so that signing takes little time
DOCUMENTS = 32  # in a file
NO_RANK = 10**9
COUNTED = """
import sys
from training.running.runner import main
from training.stages import STAGES
code = main(sys.argv[1:], STAGES)
said = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(said["rchar"], said["read_bytes"])
sys.exit(code)
"""


def main() -> None:
    """Run all tasks, and print a line for each process and the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--code", type=Path, default=Path.cwd(), help="the checkout that the tasks run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        item = inputs(Path(temporary), options.ranks)
        files = [Path(item.path, name) for name in item.files()]
        given = sum(path.stat().st_size for path in files)
        print(f"{len(files)} files of {given / len(files) / 1e6:.2f} MB, {given:,} bytes")
        job = sign_job(Path(temporary), item)
        code, _ = counted(job, [f"--ranks={NO_RANK}"], options.code, files)
        told = [counted(job, [f"--ranks={n}/{options.tasks}"], options.code, files) for n in range(options.tasks)]
        told.append(counted(job, [], options.code, files))
        assert artifact.find(Path(job.output)) is not None
    names = [*(f"task {number}" for number in range(options.tasks)), "finish"]
    for name, (chars, disk) in zip(["no ranks", *names], [(code, 0), *told], strict=True):
        print(f"{name:>9}: rchar {chars:>14,}  read_bytes {disk:>14,}")
    chars, disk = (sum(column) for column in zip(*told, strict=True))
    print(f"rchar ÷ inputs {chars / given:.3f}; read_bytes ÷ inputs {disk / given:.3f}")
    print(
        f"rchar without the code ÷ inputs {(chars - len(told) * code) / given:.3f}, if a task without ranks reads none"
    )


def inputs(folder: Path, ranks: int) -> InputArtifact:
    """Make a committed artifact with one document file for each rank."""
    draw = random.Random(0)
    texts = [[draw.randbytes(TEXT_BYTES).hex() for _ in range(DOCUMENTS)] for _ in range(ranks)]
    return chain.documents(folder, "one", texts)


def sign_job(folder: Path, item: InputArtifact) -> Job:
    """Write the job of the stage `sign` and return it."""
    job = Job(
        stage="sign",
        asset="document_signatures",
        partition="tiny@one",
        recipe="tiny",
        fingerprint="f",
        stage_version="1",
        settings={"dedup": write_record(DedupRecipe())},
        inputs=(item,),
        output=str(folder / "document_signatures" / "f"),
        run=RunSettings(workers=1),
    )
    write_job(job, Path(job.output) / "job.json")
    return job


def counted(job: Job, options: list[str], code: Path, files: list[Path]) -> tuple[int, int]:
    """Run one process of the job, with the inputs dropped from the page cache; return its `rchar` and `read_bytes`."""
    for path in files:
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    argv = [sys.executable, "-c", COUNTED, f"{job.output}/job.json", *options]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    ran = subprocess.run(argv, env=environment, cwd=code, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    chars, disk = ran.stdout.split()[-2:]
    return int(chars), int(disk)


if __name__ == "__main__":
    main()

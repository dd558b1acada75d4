"""Take a model from its crawl to its promotion, with a ceiling that the kernel enforces on each of its processes.

`python -m benchmarks.ceiling_chain` (or `make ceiling-chain`) runs a small kitchen twice, through `pedigree run`. The
first run has a tiny model, and tells how much memory each process of each asset needs without a model. The second one
has 95 million weights. Each of its processes may have as much as in the first run, and its share of weights, gradients
and optimizer (16 bytes a weight in all) and a quarter more. Its pretraining is killed after a checkpoint and goes on
with two processes instead of four. Everything after it has four: SFT, the reward model, DPO, the scores, the rewards.

The ceiling is RLIMIT_DATA, which also counts files that are mapped, so it is higher while a model or a checkpoint is
opened. What is in a node's memory if the model is on GPUs does not count: a checkpoint's copy of the share is in shared
memory, and the base model's file of weights, which is joined before it is written, has 64 MB instead of 5 GB.

The exit code is 1 if the model is not promoted. `--control` gives each process of an asset the whole model, which must
fail.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from benchmarks.chain import PEDIGREE
from benchmarks.faults import VARIABLE, living
from training.pretrain.models.shape import ModelConfig

FOLDER = "PEDIGREE_CEILING"  # environment variable: where the ceilings are, and where the peaks go
CEILINGS_FILE = "ceilings.json"
FILE_BYTES = 2**26  # of a file of the exported model
STACK_BYTES = 2**20  # of a thread; the usual 8 MiB are hardly used
SLACK = 1.25
STATE_BYTES = 16  # of a weight: itself, its gradient and AdamW's two numbers
WEIGHT_BYTES = 4
SPREAD = ("base_model", "sft_model", "reward_model", "aligned_model", "model_scores", "alignment_rewards")
LOOK_SECONDS = 0.02  # from one look at the memory to the next
LARGE = ModelConfig(vocab_size=512, width=512, layers=24, heads=8, kv_heads=4, mlp_width=2048, max_length=128)
SIDES = ("width", "layers", "heads", "kv_heads", "mlp_width")
TUNED = {"batch_size": 4, "precision": "fp32", "trl": {"activation_checkpointing": True}}
SUITES = [  # two of the kitchen's exams, with short answers: each token takes a pass of all processes
    {"name": "cloze", "uri": "kitchen://cloze", "kind": "multiple_choice", "question_field": "query"},
    {"name": "questions", "uri": "kitchen://questions", "kind": "generate", "max_new_tokens": 2},
]
RECIPE: dict[str, Any] = {
    "extends": "kitchen-nightly",
    "snapshots": [{"name": "kitchen-1", "source": "kitchen", "label": "web"}],
    # Passes without gradients read up to 16,384 tokens, of held-out text up to 65,536, whose states are not divided.
    "kitchen": {"dialogues": 16, "preferences": 24},
    "mixture": {"held_out_fraction": 0.01},
    "pretrain": {"tokens": 1536, "global_batch_tokens": 512, "precision": "fp32", "min_loss_fall": 0.0},
    "sft": {**TUNED, "epochs": 0.5},
    "reward": {**TUNED, "epochs": 0.2},
    "align": {**TUNED, "epochs": 0.2, "max_new_tokens": 4},
    "evaluation": {"suites": SUITES, "held_out_limit": 8, "alignment_max_new_tokens": 4},
}


def main() -> int:
    """Run both chains and print the peaks; return 1 if the large model was not promoted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", choices=SPREAD[1:], help="an asset whose processes each have the whole model")
    parser.add_argument("--root", default="", help="an empty folder; default: a temporary one, removed afterwards")
    options = parser.parse_args()
    # The whole of a thread's stack would count, and gloo has two threads for each group of processes.
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    with tempfile.TemporaryDirectory() as temporary:
        chain = Chain(Path(options.root or temporary))
        if not chain.run("tiny", profile(chain.folder, 4)):
            return 1
        parameters = chain.set_ceilings()
        print(f"{parameters:,} weights; the whole: {STATE_BYTES * parameters / 1e6:,.0f} MB", flush=True)
        chain.kill_after_checkpoint("large", profile(chain.folder, 4))
        is_promoted = chain.run("large", profile(chain.folder, 2, options.control))
        for line in chain.table(parameters):
            print(line)
    print("promoted" if is_promoted else "NOT promoted")
    return 0 if is_promoted else 1


class Chain:
    """Two recipes under one root, and what their processes need."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.seen = folder, folder / "root", folder / "ceiling"
        self.seen.mkdir(parents=True, exist_ok=True)
        (folder / "recipes").mkdir(exist_ok=True)
        for name, model in (("tiny", {}), ("large", {"model": {name: getattr(LARGE, name) for name in SIDES}})):
            text = json.dumps({**RECIPE, **model, "name": f"ceiling-{name}", "promote": {"model_name": name}})
            (folder / "recipes" / f"ceiling-{name}.yaml").write_text(text)

    def run(self, name: str, profile: Path) -> bool:
        """Run a recipe to its end; return whether its model was promoted. What went wrong is printed."""
        ended = self._start(name, profile, stdout=subprocess.PIPE).communicate()[0]
        answer = json.loads(ended.splitlines()[-1]) if ended.strip() else {}
        if not answer.get("ok"):
            print(answer.get("error") or answer.get("refusals") or f"see {self.folder / 'log.txt'}")
        return bool(answer.get("ok")) and self.made(name, "promoted_model")["metrics"].get("promoted") == 1

    def kill_after_checkpoint(self, name: str, profile: Path) -> None:
        """Start a recipe, and kill every process of it once its pretraining has a whole checkpoint."""
        mark = uuid.uuid4().hex
        running = self._start(name, profile, mark=mark)
        while not list(self.root.glob("base_model/*/*/checkpoints/step*/manifest.json")):
            if running.poll() is not None:
                raise RuntimeError(f"the run ended before its first checkpoint, with {running.returncode}")
            time.sleep(0.1)
        while any(found := [pid for pids in living(mark).values() for pid in pids]):
            for pid in found:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(pid, signal.SIGKILL)
            running.wait()

    def _start(self, name: str, profile: Path, *, mark: str = "", stdout: int | None = None) -> subprocess.Popen[bytes]:
        here = Path(__file__).parent
        environment = {
            **os.environ,
            FOLDER: str(self.seen),
            VARIABLE: mark,
            "PEDIGREE_RECIPES": str(self.folder / "recipes"),
            "PYTHONPATH": os.pathsep.join([str(here / "ceiling_site"), str(here.parent)]),
        }
        argv = [*PEDIGREE, "run", f"ceiling-{name}", "--root", str(self.root), "--profile", str(profile), "--json"]
        with open(self.folder / "log.txt", "ab") as log:
            return subprocess.Popen(argv, stdout=stdout or log, stderr=log, env=environment)

    def made(self, name: str, asset: str) -> dict[str, Any]:
        """Return the record of a recipe's artifact."""
        folder = (self.root / "refs" / asset / f"ceiling-{name}.json").read_text()
        return json.loads((self.root / asset / json.loads(folder)["fingerprint"] / "artifact.json").read_text())

    def set_ceilings(self) -> int:
        """Take what the tiny model's processes had at their end for what is needed without one; return the weights."""
        base = {asset: {one["rank"]: one["last"] for one in self._peaks(asset)} for asset in SPREAD}
        for file in self.seen.glob("*.peak.json"):
            file.unlink()
        parameters = LARGE.parameter_count
        (self.seen / CEILINGS_FILE).write_text(json.dumps({"base": base, "parameters": parameters}))
        return parameters

    def _peaks(self, asset: str) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.seen.glob(f"{asset}-*.peak.json"))]

    def table(self, parameters: int) -> Iterator[str]:
        """Yield a line for each asset and number of processes: the most that one of them had."""
        for asset in SPREAD:
            peaks = self._peaks(asset)
            for size in sorted({one["size"] for one in peaks}, reverse=True):
                most = max(one["bytes"] for one in peaks if one["size"] == size)
                share = STATE_BYTES * parameters / size
                yield f"  {asset:18} {size} processes {most / 1e6:7,.0f} MB  {most / share:.2f} of the share"


def profile(folder: Path, processes: int, control: str | None = None) -> Path:
    """Write the profile in which pretraining has so many processes, and return its path."""
    spread = {"processes": 4, "shard": 4, "threads": 1}
    stages: dict[str, Any] = dict.fromkeys(SPREAD, spread)
    stages["base_model"] = {
        **spread,
        "processes": processes,
        "shard": processes,
        "recompute": "full",
        "checkpoint_seconds": 1,
        "evaluation_steps": 1000,  # so that a text is written once, at the end
        "micro_batch_tokens": 128,
    }
    if control:
        stages[control] = {**spread, "shard": 1}
    path = folder / f"four-{processes}{control or ''}.yaml"
    path.write_text(json.dumps({"name": path.stem, "default": {"backend": "local"}, "stages": stages}))
    return path


# In a process of a training


def under_ceiling() -> None:
    """Note the most memory that this process has, and set its ceiling if there is one."""
    job = next((Path(word) for word in _words() if word.endswith("job.json")), None)
    if job is None or FOLDER not in os.environ:
        return
    folder, asset, size = Path(os.environ[FOLDER]), job.parent.parent.name, int(os.environ["WORLD_SIZE"])
    if asset == "base_model":
        preload()
    rank = os.environ["RANK"]
    watch = _Watch(folder / f"{asset}-{rank}-{os.getpid()}.peak.json", rank, size)
    if (folder / CEILINGS_FILE).exists():
        known = json.loads((folder / CEILINGS_FILE).read_text())
        share = STATE_BYTES * known["parameters"] // size
        watch.base = known["base"][asset][rank]
        watch.ceiling = watch.base + int(SLACK * share)
        watch.limit(watch.ceiling)
        _open_above(watch, known["parameters"] * (STATE_BYTES if asset == "base_model" else WEIGHT_BYTES), asset)
    threading.Thread(target=watch.look, daemon=True).start()


def preload() -> None:
    """Load what pretraining otherwise loads in its first process alone, when it checks the export."""
    import accelerate  # noqa: F401
    from transformers import AutoModelForCausalLM, Qwen3ForCausalLM  # noqa: F401


def status(field: str) -> int:
    """Return a field of this process's memory in bytes."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


def _words() -> list[str]:
    return Path("/proc/self/cmdline").read_bytes().decode().split("\0")


class _Watch:
    """The most memory of this process beyond `base`, apart from moments in which a file is mapped."""

    def __init__(self, file: Path, rank: str, size: int) -> None:
        self.file, self.rank, self.size, self.base, self.ceiling = file, rank, size, 0, 0
        self.pauses = 0

    def limit(self, ceiling: int) -> None:
        """Let the kernel refuse memory beyond this."""
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def look(self) -> None:
        """Write the peak down whenever it rises."""
        most = -math.inf
        while True:
            pauses, now = self.pauses, status("VmData") - self.base
            if now > most and pauses == self.pauses and pauses % 2 == 0:
                most = now
            self._write({"bytes": most, "last": now, "rank": self.rank, "size": self.size})
            time.sleep(LOOK_SECONDS)

    def _write(self, seen: dict[str, Any]) -> None:
        whole = self.file.with_suffix(".new")
        whole.write_text(json.dumps(seen))
        whole.rename(self.file)

    @contextmanager
    def above(self, more: int) -> Iterator[None]:
        """Context manager in whose block the ceiling is higher, and the memory is not noted."""
        self.pauses += 1
        self.limit(self.ceiling + more)
        try:
            yield
        finally:
            self.limit(self.ceiling)
            self.pauses += 1

    def opening(self, load: Callable[..., Any], more: int) -> Callable[..., Any]:
        """Return a function that opens something whose file is mapped for the time."""

        @wraps(load)
        def opened(*given: Any, **named: Any) -> Any:
            with self.above(more):
                loaded = load(*given, **named)
                gc.collect()
            return loaded

        return opened


def _open_above(watch: _Watch, mapped: int, asset: str) -> None:
    """Let a process open files of so many bytes above its ceiling, and keep copies for checkpoints beside it."""
    if asset == "base_model":
        from training.pretrain.checkpoint import Store
        from training.pretrain.models import export
        from training.pretrain.state import State

        State.resume = watch.opening(State.resume, mapped)
        copy = Store._copy

        def copied(self: Any, share: Any) -> None:
            for name, tensor in share.items():
                self._copies.setdefault(name, _shared(tensor))
            copy(self, share)

        Store._copy = copied
        export.difference = watch.opening(export.difference, mapped)  # transformers maps the exported files
        write = export._write_files
        export._write_files = lambda *given, file_bytes: write(*given, file_bytes=min(file_bytes, FILE_BYTES))
    elif asset in ("model_scores", "alignment_rewards"):
        from training.generate import model_folder

        model_folder.open_model = watch.opening(model_folder.open_model, mapped)
    else:
        from training.posttrain.trainer import fit

        fit.load_for_training = watch.opening(fit.load_for_training, mapped)


def _shared(tensor: Any) -> Any:
    """Return a tensor of the same size in shared memory."""
    import torch

    storage = torch.UntypedStorage._new_shared(tensor.numel() * tensor.element_size())
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape)


if __name__ == "__main__":
    sys.exit(main())

"""Which kernels a training step's time goes to on a GPU, by torch's profiler."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from benchmarks.trainers import Task, own

MOST = 30  # kernels that are listed
# The first of these whose words are in a kernel's name is its kind.
KINDS = (
    ("attention", ("flex", "flash", "fmha", "attention", "cudnn_generated")),
    ("products", ("gemm", "nvjet", "cutlass", "xmma", "wgmma", "matmul", "_mm_")),
    ("optimizer", ("fused_adam", "multi_tensor", "fusedoptimizer", "adamw")),
    ("copies", ("memcpy", "memset")),
)
OTHERS = "others"


def kernels_of(task: Task, *, warm: int, steps: int) -> dict[str, Any]:
    """Train a few steps in this process, the last `steps` of them under the profiler.

    Return the seconds of a step, the share of them without a kernel on the device, each kind's share of the kernels'
    time, and the kernels that take most.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CUDA if task.device == "cuda" else ProfilerActivity.CPU]
    profiler = profile(activities=activities)
    turns = _Profiled(profiler, warm=warm, steps=steps)
    with contextlib.suppress(_Enough):
        own(task, turns)  # pyrefly: ignore[bad-argument-type]
    is_kernel = "CUDA" if task.device == "cuda" else "CPU"
    events = [event for event in profiler.events() if event.device_type.name == is_kernel]
    spans = [(event.time_range.start, event.time_range.end) for event in events]
    taken: Counter[str] = Counter()
    for event in events:
        taken[event.name] += event.time_range.end - event.time_range.start
    total = sum(taken.values()) or 1
    kinds: Counter[str] = Counter()
    for name, microseconds in taken.items():
        kinds[kind_of(name)] += microseconds
    return {
        "settings": turns.about["settings"],
        "step_seconds": turns.seconds / steps,
        "idle": 1 - busy(spans) / 1e6 / turns.seconds,
        "kinds": {kind: microseconds / total for kind, microseconds in kinds.most_common()},
        "kernels": [
            {"name": name[:160], "milliseconds_a_step": microseconds / 1e3 / steps, "share": microseconds / total}
            for name, microseconds in taken.most_common(MOST)
        ],
        "kernels_a_step": len(events) / steps,
    }


def kind_of(name: str) -> str:
    """Return the kind of a kernel by its name."""
    lower = name.lower()
    return next((kind for kind, words in KINDS if any(word in lower for word in words)), OTHERS)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, end)."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


class _Enough(Exception):
    """Raised to end the training after the last profiled step."""


class _Profiled:
    """Takes the place of the requests for steps: it starts the profiler after `warm` steps, and ends the training."""

    def __init__(self, profiler: Any, *, warm: int, steps: int) -> None:
        self.about: dict[str, Any] = {}
        self.seconds = 0.0
        self._profiler, self._warm, self._until = profiler, warm, warm + steps
        self._made, self._began = 0, 0.0

    def __call__(self, loss: Any = None) -> None:
        del loss  # reading it has already waited for the device
        self._made += 1
        if self._made == self._warm:
            self._profiler.start()
            self._began = time.perf_counter()
        if self._made == self._until:
            self.seconds = time.perf_counter() - self._began
            self._profiler.stop()
            raise _Enough

"""Numerics classes: the device, threads, processes and library builds that decide the last bits of a model's output.

The order of a floating-point sum decides its last bits, and during training a difference in one bit grows until the
models differ. Two runs of one fingerprint give the same bytes in the same class, and may differ between classes. The
class is in the artifact's record, and no fingerprint depends on it.

This module imports only the standard library, and torch when a function needs it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.contract.artifact import canonical_json, checkpoint_step, write_json
from training.contract.job import Job, Work
from training.contract.records import differences
from training.contract.run_settings import RunSettings

Numerics = dict[str, Any]

NOTES_FOLDER = "numerics"
DEGREES = ("shard", "tensor", "context", "expert", "pipeline", "pipeline_chunks")
# Environment variables that make the libraries choose other instructions, another precision or another order of sums.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)

# Instructions by which the libraries choose among kernels that torch's capability, such as AVX512, does not tell apart.
INSTRUCTIONS = ("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "amx_fp16")

# What torch may compute by a function of Intel's MKL for many numbers at once (ATen/cpu/vml.h of torch 2.13).
BY_MKL = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1"),
    *("lgamma", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)


# Before the work


def use_threads(run: RunSettings) -> None:
    """Set torch's threads to the profile's number, or to one in audit mode, which gives the same bits everywhere.

    MKL chooses a function's kernel when it is first called. If two threads make that call together, one may compute its
    numbers by a kernel of low accuracy (`python -m tests.first_calls`). So each is called once before, by one thread.
    Source: pytorch/pytorch, issue 188792.
    """
    torch = _torch()
    for dtype in (torch.float32, torch.float64):
        for name in BY_MKL:
            getattr(torch, name)(torch.full((1,), 0.5, dtype=dtype))
    threads = 1 if run.audit else run.threads
    if threads:
        torch.set_num_threads(threads)


def note(job: Job, work: Work, *, rank: int = 0, any_processes: bool = False, pretrains: bool = False) -> None:
    """Record, in the scratch folder, the numerics class of this attempt and the step at which it begins.

    `rank` is the rank of a data stage. `any_processes` leaves the number of processes out, because it changes no bit.
    Only a stage that `pretrains` compiles its model and chooses its attention, so no other records these settings.
    """
    if int(os.environ.get("RANK", "0")) != 0:
        return
    folder = work.scratch / NOTES_FOLDER
    step = checkpoint_step(work.path) or 0
    attempt = len(list(folder.glob(f"{rank:05d}-*")))
    now = {"rank": rank, "step": step, "class": observed(job.run, any_processes=any_processes, pretrains=pretrains)}
    write_json(folder / f"{rank:05d}-{attempt:05d}.json", now)


def note_begin(work: Work, step: int, made_in: Numerics | None) -> None:
    """Record that this attempt begins after `step` with what a training in the class `made_in` had by then.

    None means that the class is not known; then nothing is recorded of it.
    """
    folder = work.scratch / NOTES_FOLDER
    own = sorted(folder.glob("00000-*.json"))[-1]
    now = json.loads(own.read_text("utf-8"))
    if made_in is None or made_in == now["class"]:
        return
    write_json(own, now | {"class": made_in})
    write_json(folder / f"00000-{int(own.stem.partition('-')[2]) + 1:05d}.json", now | {"step": step})


# The class


def recorded(job: Job, work: Work) -> Numerics:
    """Return the numerics class of a finished job; a field that changed between attempts or ranks is a list of values.

    An attempt is left out if a later one began at the same step or earlier and so repeated all its steps.
    """
    notes = [json.loads(path.read_text("utf-8")) for path in sorted((work.scratch / NOTES_FOLDER).glob("*.json"))]
    lasting = [
        one
        for place, one in enumerate(notes, start=1)
        if all(later["rank"] > one["rank"] or later["step"] > one["step"] for later in notes[place:])
    ]
    return merged([one["class"] for one in lasting] or [observed(job.run)])


def observed(run: RunSettings, *, any_processes: bool = False, pretrains: bool = False) -> Numerics:
    """Return the numerics class of this process as torch reports it: only properties that can change a computed bit."""
    torch = _torch()
    processes = {} if any_processes else {"processes": int(os.environ.get("WORLD_SIZE", "1"))}
    return {
        "device": _device(),
        "threads": torch.get_num_threads(),
        **processes,
        "degrees": {name: degree for name in DEGREES if (degree := getattr(run, name)) > 1}
        | ({"zero_stage": run.zero_stage} if run.zero_stage < 3 else {})
        | ({"gather_dtype": run.gather_dtype} if run.gather_dtype != "fp32" else {}),
        **({"attention": run.attention} if pretrains and run.attention != "auto" else {}),
        "micro_batch_tokens": run.micro_batch_tokens or 0,  # 0 in records: a micro-batch is all that a process takes
        "compile": run.compile if pretrains else False,
        "audit": run.audit,
        "precision": _precision(),
        "builds": _builds(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def merged(classes: Sequence[Numerics]) -> Numerics:
    """Merge several classes into one. A field in which they differ becomes a list of its values in order of use."""
    names = dict.fromkeys(name for one in classes for name in one)
    return {name: _merged([one.get(name) for one in classes]) for name in names}


def _merged(values: Sequence[Any]) -> Any:
    different = list({canonical_json(value): value for value in values}.values())
    return different[0] if len(different) == 1 else different


def _torch() -> Any:
    """Import torch by name when it is needed: the runner imports this module, and data stages run without torch."""
    return importlib.import_module("torch")


def _device() -> str:
    torch = _torch()
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    """Return the processor as /proc/cpuinfo tells it: name, family, model, cache, instructions; else its architecture.

    The name is not enough: of many virtual machines it is the same for processors of several generations, for which the
    libraries choose other kernels.
    """
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    return described(text) or platform.machine()


def described(text: str) -> str:
    """Return the processor that a text in the form of /proc/cpuinfo describes; empty if it names none."""
    said = {name: value.strip() for name, value in re.findall(r"^([a-z ]+?)[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)}
    kind = "-".join(said[name] for name in ("cpu family", "model") if said.get(name))
    has = [one.replace("_", "-") for one in INSTRUCTIONS if one in said.get("flags", "").split()]
    parts = (said.get("model name", ""), kind, said.get("cache size", ""), *has)
    return " ".join(filter(None, parts)) if parts[0] else ""


def _precision() -> dict[str, Any]:
    torch = _torch()
    chosen = {
        "float32_matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if torch.cuda.is_available():
        return chosen | {"cudnn_benchmark": torch.backends.cudnn.benchmark}
    lacks_bf16 = importlib.import_module("training.contract.process.precision").lacks_bf16  # as for torch
    # Named only where it is replaced, so that the class of another machine stays as it is on record.
    return chosen | ({"bf16": "in fp32"} if lacks_bf16(torch.device("cpu")) else {})


# Patterns that find the libraries for matrix products on a CPU in torch's description of its build.
_IN_CONFIG = {
    "blas": r"BLAS_INFO=(\w+)",
    "mkl": r"Math Kernel Library Version (.+?)(?: for |\n)",
    "onednn": r"MKL-DNN (v[\d.]+)",
}


def _builds() -> dict[str, str]:
    """Return the builds of the libraries that choose the order of a sum.

    The versions of other Python libraries are in the record already.
    """
    torch = _torch()
    text = torch.__config__.show()
    builds = {"torch": torch.__version__}
    for name, pattern in _IN_CONFIG.items():
        if found := re.search(pattern, text):
            builds[name] = found[1]
    if "torchao" in sys.modules:  # makes fp8's products
        builds["torchao"] = importlib.metadata.version("torchao")
    if torch.cuda.is_available():
        builds |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return builds


# In words


def change(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    """Return a sentence that says why two results of one fingerprint may differ.

    It compares the numerics classes in their records.
    """
    if not old or not new:
        return "the same fingerprint with another result; the numerics class of one of them is not on record"
    changed = differences(dict(old), dict(new))
    if not changed:
        return "the same fingerprint and numerics class with another result"
    return f"the same fingerprint, another numerics class: {', '.join(line.replace(': ', ' ', 1) for line in changed)}"


def in_words(numerics: Mapping[str, Any]) -> str:
    """Return the numerics class as one line for people."""
    parts = [_one(numerics, "device"), f"threads {_one(numerics, 'threads')}"]
    if "processes" in numerics:
        parts.append(f"processes {_one(numerics, 'processes')}")
    else:
        parts.append("any number of processes")
    parts += [f"{name} {degree}" for name, degree in _items(numerics["degrees"])]
    if numerics["micro_batch_tokens"]:
        parts.append(f"micro-batches of {_one(numerics, 'micro_batch_tokens')} tokens")
    parts += [name for name in ("compile", "audit") if numerics[name]]
    parts += [f"bf16 {how}" for name, how in _items(numerics["precision"]) if name == "bf16"]
    parts += [f"{name} {version}" for name, version in _items(numerics["builds"])]
    parts += [f"{name}={value}" for name, value in _items(numerics["variables"])]
    return ", ".join(parts)


def _one(numerics: Mapping[str, Any], name: str) -> str:
    value = numerics[name]
    return " then ".join(map(str, value)) if isinstance(value, list) else str(value)


def _items(value: Any) -> list[tuple[str, Any]]:
    """Yield the items of a field of a numerics class.

    The field holds a mapping, or a list of mappings if attempts differed.
    """
    mappings = value if isinstance(value, list) else [value]
    return [item for one in mappings for item in one.items()]

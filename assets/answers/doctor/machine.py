"""What a run needs of this machine: libraries, cores, memory, GPUs, a clock, ports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from packaging.requirements import Requirement

from assets.answers.doctor.finding import Finding
from assets.services.dev import is_free
from resources.compute.size import Size
from training.contract.process.cores import available_cores
from training.pretrain.capacity.room import gigabytes, machine_memory

PORTS = {3000: "--port", 5000: "--mlflow-port"}
TORCH_SECONDS = 120
# In a process of its own: what is broken in an installed build may end the process that imports it.
TRY_TORCH = """
import json, torch
devices = [torch.device("cpu"), *(torch.device("cuda", n) for n in range(torch.cuda.device_count()))]
for device in devices:
    x = torch.eye(64, device=device, requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad.sum().item() == 64 * 64 * 2, device
print(json.dumps([torch.__version__, [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]]))
"""


def look_at_machine(sizes: Iterable[Size]) -> Iterator[Finding]:
    """Yield what is found on this machine. `sizes` are those of the profile's stages that run on it."""
    sizes = list(sizes)
    here = [size for size in sizes if size.backend == "local"]
    yield _packages()
    yield from _programs(sizes)
    yield _clock()
    if here:
        yield _cores(here)
        yield _memory(here)
    yield _torch(max((size.gpus_per_node for size in here), default=0))
    yield from (_port(port, option) for port, option in PORTS.items())


def _packages() -> Finding:
    needed = [Requirement(line) for line in requires("pedigree") or ()]
    needed = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = [problem for one in needed if (problem := _wrong_package(one))]
    if wrong:
        return Finding("packages", "problem", "; ".join(wrong), "install the project anew, as its README says")
    return Finding("packages", "ok", f"Python {sys.version.split()[0]}; {len(needed)} packages as declared")


def _wrong_package(needed: Requirement) -> str:
    try:
        there = version(needed.name)
    except PackageNotFoundError:
        return f"{needed.name} is not installed"
    return "" if needed.specifier.contains(there, prereleases=True) else f"{needed.name} is {there}, not {needed}"


def _programs(sizes: Iterable[Size]) -> Iterator[Finding]:
    """Yield what the profile's backends and engines need on this machine and do not find."""
    if any(size.engine == "ray" for size in sizes) and find_spec("ray") is None:
        yield Finding("ray", "problem", "the profile's engine is not installed", "pip install 'pedigree[ray]'")
    if which("kubectl") is None and any(size.backend == "kubernetes" for size in sizes):
        yield Finding("kubernetes", "problem", "no kubectl on the PATH", "install it")


def _clock() -> Finding:
    installed = Path(__file__).stat().st_mtime
    if time.time() >= installed:
        return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M %Z"))
    return Finding(
        "clock", "problem", f"{time.strftime('%Y-%m-%d %H:%M')} is before the installation of this program", "set it"
    )


def _cores(sizes: list[Size]) -> Finding:
    usable = available_cores()
    most = max(max(size.workers or 1, size.processes * (size.threads or 1)) for size in sizes)
    found = f"{usable} can be used; the profile's largest stage takes {most}"
    if most <= usable:
        return Finding("cores", "ok", found)
    return Finding("cores", "warning", found, "lower workers, processes or threads in the profile: it would be slower")


def _memory(sizes: list[Size]) -> Finding:
    total, limited_by = machine_memory()
    asked = max((size.memory_gb or 0.0 for size in sizes), default=0.0)
    found = f"{gigabytes(total)} GB in {limited_by}" + (f"; the profile asks for {asked:g}" if asked else "")
    if asked * 1e9 <= total:
        return Finding("memory", "ok", found)
    return Finding("memory", "problem", found, "lower memory_gb in the profile, or use a larger machine")


def _torch(gpus: int) -> Finding:
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRY_TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS, check=True
        )
        release, names = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Finding(
            "torch", "problem", f"a small product is not computed in {TORCH_SECONDS} s", "see the GPU driver"
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [f"its process ended with {error.returncode}"])[-1]
        return Finding("torch", "problem", said, "install a build of torch for this machine (TORCH_INDEX)")
    found = f"{release}; a product and its gradient on the CPU" + "".join(f", {name}" for name in names)
    if gpus > len(names):
        asked = f"{found}; the profile asks for {gpus} GPUs"
        return Finding("torch", "problem", asked, "lower gpus_per_node, or install torch's build for the GPUs")
    return Finding("torch", "ok", found)


def _port(port: int, option: str) -> Finding:
    if is_free(port):
        return Finding(f"port {port}", "ok", "free")
    return Finding(f"port {port}", "warning", "in use", f"`pedigree dev` takes another one by {option}")

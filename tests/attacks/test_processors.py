"""Data has the same bytes on every processor: stages run as on lesser ones, and with another C library's exp and log.

A processor with more instructions than this one cannot be imitated, but what it would change can: the C library's
functions are replaced by ones whose every inexact result has another last bit, which numpy, compiled loops, Python and
C++ call. On processors with AVX-512 numpy has an exp and log of its own; a test holds that no data stage calls them.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import __cpu_features__

from assets.state.chain import CHAIN, ancestors
from tests.attacks.test_numerics import DATA, jobs_of
from training.contract import artifact
from training.contract.identity.closure import Code
from training.contract.job import write_job

OTHER_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>

static double other(double y) { return isfinite(y) && y != floor(y) ? nextafter(y, INFINITY) : y; }
static float otherf(float y) { return isfinite(y) && y != floorf(y) ? nextafterf(y, INFINITY) : y; }

#define TRUE_ONE(name) static typeof(&name) f; if (!f) f = (typeof(f))dlsym(RTLD_NEXT, #name)
#define ONE(name) \\
    double name(double x) { TRUE_ONE(name); return other(f(x)); } \\
    float name##f(float x) { TRUE_ONE(name##f); return otherf(f(x)); }
#define TWO(name) \\
    double name(double x, double y) { TRUE_ONE(name); return other(f(x, y)); } \\
    float name##f(float x, float y) { TRUE_ONE(name##f); return otherf(f(x, y)); }

ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(cbrt) ONE(sin) ONE(cos) ONE(tan) ONE(asin)
ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(asinh) ONE(acosh) ONE(atanh) ONE(erf) ONE(erfc) ONE(lgamma)
ONE(tgamma) TWO(pow) TWO(atan2) TWO(hypot)
"""
ANOTHER_C_LIBRARY, EVERYTHING = "another C library", "all at once"
PROCESSORS: dict[str, dict[str, str]] = {
    ANOTHER_C_LIBRARY: {"LD_PRELOAD": ""},  # the path of the compiled source above
    "C library without FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"},
    "numpy without AVX": {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"},
    "compiled loops for any x86-64": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    "Arrow without SIMD": {"ARROW_USER_SIMD_LEVEL": "none"},
    "matrix products without AVX": {"OPENBLAS_CORETYPE": "Nehalem", "MKL_CBWR": "COMPATIBLE"},
    "torch without AVX": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
PROCESSORS[EVERYTHING] = {name: value for one in PROCESSORS.values() for name, value in one.items()}

MAKE = """
import sys
from evaluation.stages import STAGES as EVALUATION_STAGES
from training.contract.job import read_job
from training.contract.running.runner import run_job
from training.stages import STAGES as TRAINING_STAGES

for path in sys.argv[1:]:
    run_job(read_job(path), {**TRAINING_STAGES, **EVALUATION_STAGES})
"""


@pytest.fixture(scope="session")
def other_library(tmp_path_factory) -> str:
    """The path of a library that gives each elementary function of the C library another last bit."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    folder = tmp_path_factory.mktemp("library")
    (folder / "other.c").write_text(OTHER_LIBRARY)
    made = folder / "other.so"
    subprocess.run([compiler, "-fno-builtin", "-shared", "-fPIC", "-o", made, folder / "other.c", "-lm"], check=True)
    return str(made)


def environment_of(processor: str, other_library: str) -> dict[str, str]:
    given = PROCESSORS[processor]
    return {**os.environ, **given, **({"LD_PRELOAD": other_library} if "LD_PRELOAD" in given else {})}


PROBE = """
import json, math, sys
import numpy as np
said = {"C": math.exp(0.3).hex(), "loops": "", "numpy": np.exp(np.array([0.3, 0.7])).tobytes().hex()}
said["many"] = sum(math.exp(number / 1e5) % 1e-9 for number in range(100_000)).hex()
said["chosen"] = np.lib.introspect.opt_func_info(func_name="^exp$", signature="float64")["exp"]["dd"]["current"]
import numba, pyarrow
said["arrow"] = pyarrow.runtime_info().simd_level
said["loops"] = numba.njit(lambda x: np.exp(x))(0.3).hex()
said["processor"] = numba.core.config.CPU_NAME
print(json.dumps(said))
"""


def probed(environment: Mapping[str, str]) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_imitations_change_what_they_should(other_library, times):
    here = probed(os.environ)
    changes = {
        # With AVX-512 numpy has functions of its own.
        ANOTHER_C_LIBRARY: {"C", "loops", "many"} | ({"numpy"} if not __cpu_features__["X86_V4"] else set()),
        "C library without FMA": {"many"},
        "numpy without AVX": {"chosen"},
        "compiled loops for any x86-64": {"processor"},
        "Arrow without SIMD": {"arrow"},
    }
    for processor in list(changes)[: times(short=1, long=len(changes))]:
        there = probed(environment_of(processor, other_library))
        assert {name for name in here if here[name] != there[name]} >= changes[processor], processor


@pytest.mark.parametrize("processor", PROCESSORS)
def test_data_has_the_same_bytes_on_every_processor(processor, first, untouched, other_library, tmp_path, times):
    """Short: the scores and the models behind them, with another C library. Long: every partition of every stage."""
    is_long = times(short=0, long=1)
    if not is_long and processor != ANOTHER_C_LIBRARY:
        pytest.skip("repeats every data stage: `make attack`")
    jobs = [job for asset in DATA for job in jobs_of(untouched, asset)]
    if not is_long:
        jobs = [job for job in jobs if job.asset == "quality_models"] + [
            job for job in jobs if job.asset == "document_scores"
        ][:1]
    made = {}
    for number, job in enumerate(jobs):
        output = tmp_path / str(number)
        made[tmp_path / f"{number}.json"] = output
        write_job(replace(job, output=str(output), run=replace(job.run, workers=1)), tmp_path / f"{number}.json")
    environment = environment_of(processor, other_library)
    subprocess.run([sys.executable, "-c", MAKE, *map(str, made)], env=environment, check=True)
    differ = [
        f"{job.asset} [{job.partition}]"
        for job, output in zip(jobs, made.values(), strict=True)
        if artifact.find(output).digest != artifact.find(Path(job.output)).digest
    ]
    assert len(jobs) >= 2 and not differ


# Functions of numpy, math and others whose last bits depend on the processor, the C library or the number of threads.
ELEMENTARY = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "ln", "logaddexp", "logaddexp2", "pow", "power", "cbrt"),
    *("float_power", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "hypot", "erf", "erfc", "gamma", "lgamma"),
}
PRODUCTS = {"dot", "vdot", "inner", "matmul", "einsum", "tensordot", "linalg"}
LIBRARIES = {"np", "numpy", "math", "cmath", "pc", "scipy", "torch"}


def varying(source: str) -> list[str]:
    """Return the expressions of a source whose last bits may differ between processors."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=library), attr=name):
                varies = library in LIBRARIES and name in ELEMENTARY | PRODUCTS
            case ast.ImportFrom(module=str(module), names=names):
                varies = module.split(".")[0] in LIBRARIES and any(one.name in ELEMENTARY | PRODUCTS for one in names)
            case ast.BinOp(op=ast.MatMult()):
                varies = True
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=float())):
                varies = True
            case ast.BinOp(left=ast.Constant(value=float()), op=ast.Pow(), right=right):
                varies = not (isinstance(right, ast.UnaryOp) and isinstance(right.operand, ast.Constant))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant()):  # a float's square is the C library's `pow`
                varies = not isinstance(left, ast.Constant)
            case _:
                varies = False
        if varies:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_no_data_stage_calls_a_function_whose_last_bits_vary():
    """All stages of data but the card and the decision, which report on models, and items, by code that asks models."""
    code, found = Code(all_parts=True), {}
    for name in DATA:
        if name != "watched_items" and ("base_model" not in ancestors(name) or name == "contamination_report"):
            for module in code.digests(CHAIN[name].stage.module):
                path = Path(*module.split(".")).with_suffix(".py")
                if path.exists():
                    found[module] = varying(path.read_text("utf-8"))
    assert len(found) > 100 and "training.data.quality.classifier" in found and "training.order.plan" in found
    assert {module: some for module, some in found.items() if some} == {}


@pytest.mark.parametrize(
    "line",
    [
        "np.exp(x)",
        "math.log(x)",
        "from math import exp",
        "a @ b",
        "x ** 0.5",
        "x**2",
        "2.0 ** x",
        "np.dot(a, b)",
        "pc.ln(a)",
    ],
)
def test_functions_whose_last_bits_vary_are_found(line):
    assert varying(line)
    assert not varying("2.0 ** -23; 2 ** bits; np.sqrt(x); elementary.exp(x); from training.elementary import exp")

"""What is left out is left out, and whoever wants it has it all the same. In processes of their own: imports stay."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace

import pytest

from tests.training.data import chain
from training.contract.engines.workers import each_result
from training.contract.job import read_job, write_job
from training.contract.process.lean import not_found, without
from training.contract.run_settings import RunSettings
from training.data.dedup.settings import DedupRecipe


def run(script: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True)


def test_a_module_is_missing_for_as_long_as_it_is_left_out():
    sys.modules.pop("colorsys", None)
    with not_found("this", "colorsys"):
        assert importlib.util.find_spec("colorsys") is None and importlib.util.find_spec("this") is None
    with pytest.raises(ModuleNotFoundError, match="colorsys is left out"), without("this", "colorsys"):
        import colorsys
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_pyarrow_makes_tables_without_pandas():
    run(
        """
        import sys
        from training.contract.process.lean import leave_pandas_out
        leave_pandas_out()
        import pyarrow
        assert pyarrow.Table.from_pylist([{"a": 1.5, "b": "x"}]).to_pylist() == [{"a": 1.5, "b": "x"}]
        assert pyarrow.array([[1], None]).to_numpy(zero_copy_only=False)[1] is None
        assert "pandas" not in sys.modules
        import pandas
        """
    )


def test_a_kernel_is_compiled_without_scipy_and_others_extensions():
    run(
        """
        import sys
        import numpy as np
        from training.data.words.native import native
        total = native(lambda values: values.sum())
        assert total(np.arange(5)) == 10
        assert not {"scipy", "awkward"} & set(sys.modules)
        import scipy.linalg
        """
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_no_process_of_a_stage_that_makes_tables_imports_pandas(workers, tmp_path):
    source = chain.documents(tmp_path, "one", [["salt and bread " * 20], ["bread and salt " * 20]])
    made = chain.run(tmp_path, "sign", "document_signatures", "tiny@one", {"dedup": DedupRecipe()}, [source])
    job = read_job(made.file("job.json"))
    write_job(replace(job, output=str(tmp_path / "again"), run=RunSettings(workers=workers)), tmp_path / "job.json")
    command = [sys.executable, "-X", "importtime", "-m", "training", str(tmp_path / "job.json")]
    ran = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    imported = [line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")]
    inside = Counter(name.partition(".")[0] for name in imported if "." in name)  # one that is not found is named too
    assert inside["pyarrow"] and not inside["pandas"]
    assert json.loads((tmp_path / "again" / "artifact.json").read_text())["digest"] == made.digest


def test_what_was_imported_is_left_out_of_collections_and_later_garbage_is_not():
    run(
        """
        import gc, sys
        from training.contract.process.lean import uncollected
        sys.modules.pop("decimal", None)
        with uncollected("decimal"):
            import decimal
            assert not gc.isenabled()
        kept = gc.get_freeze_count()
        assert gc.isenabled() and kept and not any(one is vars(decimal) for one in gc.get_objects())
        circle = []
        circle.append(circle)
        del circle
        assert gc.collect() == 1
        with uncollected("decimal"):
            assert gc.isenabled()
        assert gc.get_freeze_count() == kept
        """
    )


def test_workers_share_what_their_fork_server_imported_and_collect_their_own_garbage():
    [(_, (is_collecting, kept))] = each_result(_of_the_collector, [0], workers=1, modules=[__name__], begin=int)
    assert is_collecting and kept > 10_000


def _of_the_collector(_: int) -> tuple[bool, int]:
    return gc.isenabled(), gc.get_freeze_count()

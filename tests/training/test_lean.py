"""What is left out is left out, and whoever wants it has it all the same. In processes of their own: imports stay."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from training.lean import without


def run(script: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True)


def test_a_module_is_missing_for_as_long_as_it_is_left_out():
    with pytest.raises(ModuleNotFoundError, match="chess"), without("chess", "colorsys"):
        import chess  # noqa: F401 - there is none anyway
    sys.modules.pop("colorsys", None)
    with pytest.raises(ModuleNotFoundError, match="left out"), without("colorsys"):
        import colorsys
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_pyarrow_makes_tables_without_pandas():
    run(
        """
        import sys
        from training.lean import leave_pandas_out
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
        from training.data.minhash import mixed
        from training.data.native import native
        total = native(lambda values: values.sum())
        assert total(np.arange(5)) == 10
        assert not {"scipy", "awkward"} & set(sys.modules)
        import scipy.linalg
        """
    )

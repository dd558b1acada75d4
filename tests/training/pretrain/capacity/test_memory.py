"""How a refusal shows its sum."""

from __future__ import annotations

import pytest

from training.contract.records import RecipeError
from training.pretrain.capacity.room import check_memory, gigabytes


@pytest.mark.parametrize(
    ("size", "shown"),
    [(21_400_000, "0.0214"), (3_504e6, "3.5"), (999.4e9, "999"), (999.6e9, "1,000"), (2.698e12, "2,698")],
)
def test_gigabytes_have_no_exponent(size, shown):
    assert gigabytes(size) == shown


def test_a_refusal_names_the_needs_that_are_not_zero():
    needed = {"weights": 34_200_000_000, "copies": 0, "activations": 2_698_000_000_000}
    check_memory("pretrain", needed, together=1, total=2_732_200_000_000, where="one H100")
    with pytest.raises(RecipeError, match=r"2 x \(weights 34.2 \+ activations 2,698\) GB, .* 2,732"):
        check_memory("pretrain", needed, together=2, total=2_732_200_000_000, where="one H100")

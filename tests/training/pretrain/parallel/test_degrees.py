from __future__ import annotations

import pytest

from training.contract.records import RecipeError
from training.pretrain.parallel.degrees import micro_batches_in


@pytest.mark.parametrize("data_parallel", [1, 8, 1024])
def test_the_same_recipe_spreads_over_any_machine(data_parallel):
    sizes = {"global_batch_tokens": 2**22, "sequence_length": 1024, "micro_batch_tokens": 4096}
    assert micro_batches_in(**sizes, data_parallel=data_parallel) * 4096 == 2**22
    assert micro_batches_in(**{**sizes, "micro_batch_tokens": None}, data_parallel=data_parallel) == data_parallel


@pytest.mark.parametrize(("micro", "data_parallel"), [(4096, 1025), (3000, 1), (2**23, 1), (4096, 0), (0, 3)])
def test_a_batch_that_does_not_divide_is_refused_with_the_arithmetic(micro, data_parallel):
    with pytest.raises(RecipeError, match=r"\d+"):
        micro_batches_in(
            global_batch_tokens=2**22, sequence_length=1024, micro_batch_tokens=micro, data_parallel=data_parallel
        )


@pytest.mark.parametrize(
    ("data_parallel", "said"),
    [
        (16, "is 8 rows of sequence_length=32, fewer than the 16 processes that take rows; .* at most 8 of them"),
        (3, "is 8 rows of sequence_length=32, which 3 processes cannot share equally; set micro_batch_tokens"),
    ],
)
def test_a_batch_of_too_few_rows_is_named_and_not_a_micro_batch_that_nobody_gave(data_parallel, said):
    with pytest.raises(RecipeError, match=f"global_batch_tokens=256 {said}"):
        micro_batches_in(
            global_batch_tokens=256, sequence_length=32, micro_batch_tokens=None, data_parallel=data_parallel
        )

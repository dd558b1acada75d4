"""Stages `benchmarks`, which indexes exam items, and `decontaminate`, which looks for them in documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from training.contract.records import all_of
from training.contract.stage import Asset, Input, Stage
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.task_checks import check_suite
from training.data.sections import sections, with_data

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

BENCHMARKS = Stage(
    name="benchmarks",
    version="15",
    module="training.data.exams.benchmarks",
    libraries=("xxhash",),
    kinds=("numpy", "parquet"),
)
DECONTAMINATE = Stage(
    name="decontaminate",
    version="13",
    module="training.data.exams.decontaminate",
    libraries=("xxhash",),
    kinds=("numpy", "parquet"),
    gates=("counts_balance",),
    in_ranks=True,
    by_file=("deduplicated_documents",),
    reads=("deduplicated_documents",),
)


def _benchmarks(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return only the list of exams from the recipe.

    Another stage decides what happens to documents that hold their items.
    """
    del part
    return with_data(recipe, {"decontaminate": DecontaminateRecipe(benchmarks=recipe.decontaminate.benchmarks)})


def _check_benchmarks(recipe: Recipe) -> None:
    all_of(*(partial(check_suite, benchmark) for benchmark in recipe.decontaminate.benchmarks))


ASSETS = (
    Asset(
        name="benchmark_index",
        stage=BENCHMARKS,
        description="An index of every benchmark item that must not be trained on.",
        group="corpus",
        scope="recipe",
        settings=_benchmarks,
        checks=(_check_benchmarks,),
    ),
    Asset(
        name="decontaminated_documents",
        stage=DECONTAMINATE,
        description=(
            "Documents after the search for benchmark items. A document that holds one is removed, or kept and flagged "
            "with the item and the span, as the recipe says."
        ),
        group="corpus",
        scope="snapshot",
        settings=sections("decontaminate"),
        inputs=(Input(asset="deduplicated_documents"), Input(asset="benchmark_index")),
    ),
)

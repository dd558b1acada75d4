"""A new snapshot on the small kitchen: only what depends on it is made, and the indexes grow by its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_kitchen import RECIPES, linked_copy, pedigree
from training.data.documents import read_documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LAST = "  - {name: kitchen-2, source: kitchen, label: web}\n"
INDEXES = ("provenance_index", "text_index")


@pytest.fixture(scope="module")
def place(first, untouched, tmp_path_factory) -> Path:
    """A copy of the root, of links."""
    assert first.code == 0
    return linked_copy(untouched, tmp_path_factory.mktemp("snapshot") / "root")


def state_of(place: Path) -> dict[Path, tuple[int, int, int]]:
    made = [path.parent for path in place.glob("*/*/artifact.json")]
    files = [path for folder in made for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


def test_a_new_snapshot_touches_only_what_depends_on_it_and_adds_to_the_indexes(place, tmp_path):
    before = state_of(place)
    indexes = {asset: {path.parent for path in place.glob(f"{asset}/*/artifact.json")} for asset in INDEXES}
    text = (RECIPES / "kitchen-small.yaml").read_text("utf-8").replace("name: kitchen-small", "name: kitchen-grown", 1)
    grown = tmp_path / "kitchen-grown.yaml"
    grown.write_text(text.replace(LAST, LAST + LAST.replace("kitchen-2", "kitchen-3")), "utf-8")
    made = set()
    for last in (*INDEXES, "training_plan"):
        ran = pedigree("run", str(grown), "--until", last, root=place)
        assert ran.code == 0, ran.errors
        made |= {
            (asset, partition)
            for asset, cells in ran.answer["assets"].items()
            for partition, entry in cells.items()
            if not entry["reused"]
        }
    assert {partition for _, partition in made} == {"kitchen-grown@kitchen-3", "kitchen-grown"}
    assert {asset for asset, partition in made if partition == "kitchen-grown"} == {"training_plan"}
    assert {(asset, "kitchen-grown@kitchen-3") for asset in INDEXES} <= made
    after = state_of(place)
    assert {path: after.get(path) for path in before} == before
    for asset, folders in indexes.items():
        now = {path.parent for path in place.glob(f"{asset}/*/artifact.json")}
        assert folders < now and len(now) == len(folders) + 1
    (shards,) = {
        Path(entry["uri"])
        for partition, entry in ran.answer["assets"]["token_shards"].items()
        if partition == "kitchen-grown@kitchen-3"
    }
    row = next(read_documents(next(shards.glob("shards/*.parquet")), ("id", "url")))
    traced = pedigree("trace", str(grown), "--document", row["id"], root=place)
    assert [page["url"] for page in traced.answer["pages"]] == [row["url"]], traced.errors
    earlier = pedigree("trace", "kitchen-small", "--document", row["id"], root=place)
    assert earlier.code == 2 and "no snapshot" in earlier.answer["error"]

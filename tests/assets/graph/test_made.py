"""What Dagster shows of a materialization."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from assets.graph.result import _count_metadata, columns_of
from training.contract.artifact import Artifact

ROOM = 24  # letters that the overview of an asset has for them at 1,280 pixels


def test_the_funnel_names_rules_by_number_and_fits_the_page():
    dropped = {"gopher_repetition:top_2_gram": 3, "gopher_repetition:top_4_gram": 4, "language:other_language": 5}
    counts = {"in": 15, "kept": 2, "dropped": dropped, "quarantined": {"truncated": 1}}
    shown = [(row.data["number"], row.data["records"]) for row in _count_metadata(counts)["funnel"].records]
    assert shown[:2] == [(15, "in"), (2, "kept")]
    assert shown[2:] == [(7, "gopher_repetition"), (5, "language"), (1, "truncated, quarantined")]
    assert max(len(words) for _, words in shown) <= ROOM


@pytest.mark.parametrize(
    ("files", "columns"),
    [
        (["dropped/0.parquet", "kept/0.parquet"], {"id": "string", "score": "float"}),
        (["dropped/0.parquet", "model.safetensors"], {}),
    ],
)
def test_the_columns_shown_are_those_of_the_kept_records(tmp_path: Path, files, columns):
    kept = pa.table({"id": pa.array(["a"]), "score": pa.array([0.5], pa.float32())})
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet.write_table(kept.append_column("reason", [["short"]]) if "dropped" in name else kept, tmp_path / name)
    made = Artifact(path=tmp_path, record={"files": [{"path": name} for name in files]})
    shown = columns_of(made)
    assert ({one.name: one.type for one in shown.columns} if shown else {}) == columns

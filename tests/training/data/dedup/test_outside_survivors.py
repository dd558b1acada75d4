"""A survivor policy from the user's own environment: it chooses, it is identified, and it is told when it fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.outside import EXAMPLES
from tests.training.data import chain
from tests.training.data.dedup.test_dedup import LEFT, RIGHT
from training.contract.parts.outside import PartFailed
from training.data.dedup.settings import DedupRecipe
from training.data.sections import with_parts

URLS = ("https://mirror.food.example/a/b", "https://food.example/a/b/c", "https://food.example/a/b")
ROWS = [
    chain.document("one", "file.warc.gz", 100 * place, text) | {"url": url}
    for place, (url, text) in enumerate(zip(URLS, (LEFT, RIGHT, f"{LEFT} the"), strict=True))
]


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    """The folders are outside every package, as a user's would be."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)


def made(folder: Path, place: str, **given):
    dedup = DedupRecipe(survivor="mine", parts={"mine": {"from": place, **given}}, min_similarity=0.5)
    plain = {"dedup": replace(dedup, survivor="first", parts={})}
    root, inputs = folder / place.partition(":")[0], []
    inputs.append(chain.documents_of(root, "one", [ROWS]))
    inputs.append(chain.run(root, "sign", "document_signatures", "tiny@one", plain, inputs[:1]))
    return chain.run(root, "dedup", "deduplicated_documents", "tiny@one", with_parts({"dedup": dedup}), inputs)


def test_a_survivor_policy_from_outside_chooses_by_its_own_value(tmp_path):
    item = made(tmp_path, "original:survivor", path=0.25)
    assert [row["id"] for row in chain.rows(item, "documents")] == [ROWS[2]["id"]]
    gone = {row["id"]: row["survivor"] for row in chain.rows(item, "dropped")}
    assert gone == {ROWS[0]["id"]: "mine: -2.75, not -3.75", ROWS[1]["id"]: "mine: -2.75, not -3"}
    counts = item.record()["counts"]
    assert (counts["in"], counts["kept"], sum(counts["dropped"].values())) == (3, 1, 2)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("own_survivor_raises", "1 / 0", r"survivor policy mine failed at document .*: ZeroDivisionError"),
        ("own_survivor_nan", "float('nan')", r"survivor policy mine gives document .* nan; it must be a finite number"),
        ("own_survivor_text", "'high'", r"gives document .* 'high'; it must be a finite number"),
    ],
)
def test_a_policy_that_fails_is_told_under_its_name_with_the_document(tmp_path, name, value, said):
    body = f"survivor = Survivor(value=lambda document, settings: {value})\n"
    (tmp_path / f"{name}.py").write_text(f"from training.data.dedup.survivor import Survivor\n{body}")
    with pytest.raises(PartFailed, match=said):
        made(tmp_path, f"{name}:survivor")

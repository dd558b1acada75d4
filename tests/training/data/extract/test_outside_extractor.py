"""An extractor from the user's own environment, in the isolated child process as Pedigree's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.outside import EXAMPLES
from tests.training.data.extract.test_extract import PAGE, extracted, quarantined, response
from training.contract.artifact import find
from training.contract.parts.outside import PartFailed
from training.contract.records import read_record
from training.data.documents import document_files, read_documents
from training.data.extract.settings import ExtractRecipe


def recipe_of(place: str, **given) -> ExtractRecipe:
    data = {"extractor": "mine", "parts": {"mine": {"from": place, **given}}}
    return read_record(ExtractRecipe, data, where="extract")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """The child process finds modules by the variable, this process by its path."""
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES.parents[1]}:{EXAMPLES}:{tmp_path}")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)


ODD = b"<html><body><h1>Odd page</h1>" + b"<p>It stops the extractor, and no other page.</p>" * 3 + b"</body></html>"
FILES = {
    "a.warc.gz": response("plain", PAGE)
    + response("odd", ODD)
    + response("other", PAGE.replace(b"</p>", b"</p><p>Last words.</p>"))
}


def test_it_reads_pages_with_its_own_settings(tmp_path):
    made = extracted(tmp_path, FILES, recipe=recipe_of("plain_tags:extractor", least=10))
    texts = [row["text"] for path in document_files(made, "documents") for row in read_documents(path)]
    assert len(texts) == 3 and texts[1].splitlines() == ["It stops the extractor, and no other page."] * 3
    assert texts[2].endswith("Last words.")


@pytest.mark.parametrize(
    ("fails", "detail"),
    [
        ("raise KeyError('odd')", r"extractor mine failed: KeyError: 'odd'"),
        ("return None", r"extractor mine gave a NoneType; it must give text"),
        ("import os; os.abort()", r"the extractor ended with signal 6"),
    ],
)
def test_a_page_on_which_it_fails_is_quarantined_and_the_accounts_balance(tmp_path, fails, detail):
    body = (EXAMPLES / "plain_tags.py").read_text()
    body = body.replace("    from lxml", f"    if 'Odd' in html:\n        {fails}\n    from lxml")
    (tmp_path / f"odd_{len(fails)}.py").write_text(body)
    made = extracted(tmp_path, FILES, recipe=recipe_of(f"odd_{len(fails)}:extractor"))
    (line,) = quarantined(made)
    assert line["reason"] == "extractor_failed" and re.search(detail, line["detail"])
    counts = find(Path(made.path)).record["counts"]
    assert (counts["in"], counts["kept"], counts["quarantined"]) == (3, 2, {"extractor_failed": 1})


def test_one_that_fails_on_every_page_makes_no_artifact(tmp_path):
    body = (EXAMPLES / "plain_tags.py").read_text().replace("tree.iter", "tree.walk")
    (tmp_path / "broken_everywhere.py").write_text(body)
    with pytest.raises(PartFailed, match=r"extractor mine .* 3 pages.*'walk'"):
        extracted(tmp_path, FILES, recipe=recipe_of("broken_everywhere:extractor"))


def test_one_that_never_answers_ends_the_job_and_quarantines_nothing(tmp_path):
    body = (EXAMPLES / "plain_tags.py").read_text()
    (tmp_path / "waits.py").write_text(
        body.replace("    from lxml", "    import time\n    if 'Odd' in html:\n        time.sleep(3600)\n    from lxml")
    )
    with pytest.raises(PartFailed, match=r"extractor mine .* 5 s \(hang_seconds"):
        extracted(tmp_path, FILES, recipe=recipe_of("waits:extractor"), hang_seconds=5.0)


def test_a_page_on_which_it_writes_into_another_artifact_is_quarantined(tmp_path):
    body = (EXAMPLES / "plain_tags.py").read_text()
    stray = f"    if 'Odd' in html:\n        open('{tmp_path}/stray.txt', 'w').close()\n    from lxml"
    (tmp_path / "strays.py").write_text(body.replace("    from lxml", stray))
    made = extracted(tmp_path, FILES, recipe=recipe_of("strays:extractor"))
    (line,) = quarantined(made)
    assert re.search(r"extractor mine writes outside the folder of its job: .*/stray\.txt", line["detail"])
    assert not (tmp_path / "stray.txt").exists() and find(Path(made.path)).record["counts"]["kept"] == 2

"""The summary of training content: every number is an artifact's, and any other is refused."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluation import pages
from evaluation.card import CARD_TEMPLATE, one_line
from evaluation.cited import CardTable, Cited, Origin, Unsourced, as_markdown, share_of, total
from evaluation.training_content import domains_page, tables_of
from tests.evaluation.conftest import commit
from training.artifact import find

HOSTS = {"shop.a.example.com": 60, "b.example.com": 30, "c.co.uk": 10}
PAGES = {
    "language": ["en", "en", "de"],
    "date": ["2024-05-02T10:00:00Z", "2024-05-19T10:00:00Z", None],
    "licence": [None, "https://creativecommons.org/licenses/by/4.0", None],
    "robots": ["noai", None, None],
    "tdm_reservation": [None, None, "1"],
}
ROWS = [{"id": "r#0", "source": "kitchen://talk", "generator": "kitchen"}, {"id": "r#1", "source": "kitchen://talk"}]
COUNTS = {"in": 9, "kept": 3, "dropped": {"robots": 2, "takedown:owner": 1, "too_short": 3}, "quarantined": {}}


def parquet(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(of, pa.string()) for name, of in columns.items()}), path)


@pytest.fixture
def make(tmp_path):
    """Make one asset's artifact by hand: its files, and what its record says besides."""

    def made(asset, files=(), **record):
        folder = tmp_path / asset
        folder.mkdir(exist_ok=True)
        for name, text in dict(files).items():
            (folder / name).write_text(text)
        nothing = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}}
        commit(folder, asset, **{"partition": "toy@may", "counts": nothing, **record})
        return folder, find(folder).record

    return made


@pytest.fixture
def records(make, tmp_path):
    """The artifacts of a small corpus, as a card reads them."""
    hosts = tmp_path / "corpus_summary" / "hosts.parquet"
    parquet(tmp_path / "decontaminated_documents" / "documents" / "00000.parquet", PAGES)
    hosts.parent.mkdir()
    numbers = pa.array(HOSTS.values(), pa.int64())
    names = {"host": pa.array(HOSTS), "documents": pa.array([1, 1, 1]), "tokens": numbers, "bytes": numbers}
    pq.write_table(pa.table(names), hosts)
    counted = {"documents": 3, "tokens": 100, "bytes": 100}
    summary = {**counted, "by_snapshot": {"may": counted}}
    return [
        make("crawl_archives", settings={"snapshot": {"source": "commoncrawl", "crawl": "CC-MAIN-2024-22"}}),
        make("extracted_documents", settings={"extract": _terms()}, counts=COUNTS),
        make("filtered_documents", metrics={"redacted_email": 4.0}),
        make("decontaminated_documents"),
        make("corpus_summary", {"summary.json": json.dumps(summary)}),
        make("base_model", {"weights": "1"}, metrics={"parameters": 1000.0, "tokens": 200.0}),
        make("instruction_data", {"instructions.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS)}),
    ]


def _terms():
    return {"refused_robots": ["noai"], "refuse_reserved": False, "licences": []}


def shown(records):
    return {
        table.title: [[getattr(cell, "shown", cell) for cell in row] for row in table.rows]
        for table in tables_of(records)
    }


def test_the_summary_has_what_the_template_asks_for(records):
    told = shown(records)
    general = dict(told["General information"])
    assert (general["tokens"], general["first date of a page"]) == ("100", "2024-05-02")
    assert general["operations of pretraining, six a parameter and token"] == "1.20e+06"
    assert told["Sources of pages"] == [
        ["may", "web crawl, Common Crawl CC-MAIN-2024-22", "3", "100", "100", "2024-05-02 to 2024-05-19"]
    ]
    assert told["Domains"][2:] == [["example.com", "2", "90", "90.00 %"], ["c.co.uk", "1", "10", "10.00 %"]]
    assert told["Languages"][0] == ["en", "2", "66.67 %"]
    assert ["extracted_documents", "dropped: too_short", "3"] in told["What was left out, and why"]
    assert told["Licences stated"][0] == ["none stated", "2", "66.67 %"]
    opted = dict(told["Reservations and opt-outs"])
    assert (opted["extract.refused_robots"], opted["pages left out: takedown"]) == ("noai", "1")
    assert opted["pages that state robots directives, and are trained on"] == "1"
    assert told["Personal data"] == [["email", "4"]]
    assert [row[1:] for row in told["Post-training"]] == [
        ["kitchen://talk", "none stated", "1"],
        ["kitchen://talk", "kitchen", "1"],
    ]
    assert len(told["Lineage"]) == len(records)
    assert domains_page(records).splitlines() == ["domain\tdocuments\ttokens\tbytes", "example.com\t2\t90\t90"]


def test_every_value_names_an_artifact_that_is_there_and_a_place_in_it(records):
    digests = {record["digest"]: record for _, record in records}
    cells = [cell for table in tables_of(records) for row in table.rows for cell in row if isinstance(cell, Cited)]
    assert len(cells) > 40
    for cell in cells:
        for source in cell.sources:
            record = digests[source.digest]
            named = source.place.removeprefix("artifact.json: ").split(".")[0]
            assert named in record or any(entry["path"].startswith(source.place) for entry in record["files"])


@pytest.mark.parametrize(
    ("asset", "field", "title"),
    [
        ("extracted_documents", ("counts", "dropped", "too_short"), "What was left out, and why"),
        ("filtered_documents", ("metrics", "redacted_email"), "Personal data"),
        ("base_model", ("metrics", "parameters"), "General information"),
    ],
)
def test_a_number_that_changes_in_an_artifact_changes_on_the_card(records, asset, field, title):
    before = shown(records)
    (record,) = (record for _, record in records if record["asset"] == asset)
    *path, last = field
    for key in path:
        record = record[key]
    record[last] += 7
    after = shown(records)
    assert {name for name in before if before[name] != after[name]} == {title}


def test_a_number_that_changes_in_a_file_changes_on_the_card(records, make, tmp_path):
    before = shown(records)
    path = tmp_path / "corpus_summary" / "summary.json"
    path.write_text(path.read_text().replace('"tokens": 100', '"tokens": 107'))
    changed = shown([record for record in records if record[1]["asset"] != "corpus_summary"] + [make("corpus_summary")])
    assert changed["General information"] != before["General information"]
    assert changed["Lineage"] != before["Lineage"]  # its digest says that it is another artifact


def test_a_number_without_a_source_is_refused(records):
    origin = Origin(*records[0])
    for make in (
        lambda: Cited(12, ()),
        lambda: total([]),
        lambda: origin.value_at("metrics", "never_measured"),
        lambda: origin.computed("no/such/file", 12),
        lambda: CardTable("Pages", "All of them.", ("what", "value"), [("pages", "12")]),
        lambda: CardTable("Pages", "There are 12.", ("what", "value"), []),
    ):
        with pytest.raises(Unsourced):
            make()


def test_the_template_of_the_card_holds_no_number_but_the_level_of_its_intervals():
    source = (pages.environment().loader.get_source(pages.environment(), CARD_TEMPLATE))[0]
    typed = re.sub(r"\{[{%].*?[%}]\}", "", source, flags=re.DOTALL)
    assert re.findall(r"\d+", typed) == ["256", "95"]  # the name of a hash, and 95 % intervals


def test_text_of_a_page_cannot_change_the_layout(make):
    origin = Origin(*make("crawl_archives", {"list": ""}))
    table = CardTable("Pages", "By name.", ("name",), [(origin.computed("list", "a | b\n# c"),)])
    assert "| a \\| b \\# c |" in as_markdown(table, one_line)


def test_a_share_of_nothing_is_zero(make):
    origin = Origin(*make("crawl_archives", {"list": ""}))
    none = origin.computed("list", 0)
    assert share_of(none, none).shown == "0.00 %"

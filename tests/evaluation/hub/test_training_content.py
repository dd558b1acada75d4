"""The summary of training content: every number is an artifact's, and any other is refused."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from evaluation.hub.card import CARD_TEMPLATE, one_line
from evaluation.hub.pages_read import GROUPS, Reading
from evaluation.hub.sourced import CardTable, Cited, Origin, Unsourced, as_markdown, share_of, total
from evaluation.hub.training_content import domains_page, tables_of
from evaluation.report import pages
from evaluation.stages import ASSETS
from tests.evaluation.conftest import commit
from training.contract.artifact import find

HOSTS = {"shop.a.example.com": [3, 60, 300, 1, 20], "b.example.com": [1, 30, 150, 1, 40], "c.co.uk": [1, 10, 50, 1, 70]}
LANGUAGES = {"en": [4, 70, 350, 2, 60], "de": [1, 30, 150, 1, 70]}
ROBOTS = {"noai": [2, 20, 100, 1, 5], "": [3, 80, 400, 2, 125]}
READ = {"source": "kitchen://talk", "generator": "kitchen", "rows": 1, "times": 2}
ROWS = [{"id": "r#0", "source": "kitchen://talk", "generator": "kitchen"}, {"id": "r#1", "source": "kitchen://talk"}]
DROPPED = {"robots": 2, "takedown:owner": 1, "usage": 2, "too_short": 3}
COUNTS = {"in": 11, "kept": 3, "dropped": DROPPED, "quarantined": {}}


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
def records(make):
    """The artifacts of a small corpus, as a card reads them."""
    collection = {
        "first_day": "2024-05-01",
        "last_day": "2024-05-20",
        "said": {"software": {"Nutch": 2}, "seeds": {f"https://{name}.test/": 1 for name in "abcdef"}},
    }
    return [
        make("crawl_archives", settings={"snapshot": {"source": "commoncrawl", "crawl": "CC-MAIN-2024-22"}}),
        make(
            "extracted_documents",
            settings={"extract": _terms()},
            counts=COUNTS,
            notes={"collection": collection},
        ),
        make("filtered_documents", metrics={"redacted_email": 4.0}),
        make("decontaminated_documents"),
        make("token_shards", {"shards.json": "{}"}),
        make("base_model", {"weights": "1"}, metrics={"parameters": 1000.0, "tokens": 200.0}),
        make("instruction_data", {"instructions.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS)}),
        make("sft_model", notes={"rows_read": [READ]}, counts=COUNTS | {"dropped": {"longer_than_max_length": 6}}),
        make("aligned_model", counts=None),
    ]


@pytest.fixture
def reading(records) -> Reading:
    """What was read of the corpus, as another test proves it (test_pages_read.py)."""
    sums = {name: {} for name in GROUPS} | {
        "snapshot": {"may": [5, 100, 500, 3, 130]},
        "host": HOSTS,
        "language": LANGUAGES,
        "licence": {"": [5, 100, 500, 3, 130]},
        "robots": ROBOTS,
    }
    shards = next(Origin(*one) for one in records if one[1]["asset"] == "token_shards")
    return Reading(
        trainings=[],
        sums=sums,
        days={"may": ("2024-05-02", "2024-05-19")},
        redactions=Counter(email=2),
        sources=[shards.computed("shards.json", "")],
    )


def _terms():
    return {"refused_robots": ["noai"], "refuse_reserved": False, "licences": []}


def shown(records, reading):
    return {
        table.title: [[getattr(cell, "shown", cell) for cell in row] for row in table.rows]
        for table in tables_of(records, reading)
    }


def test_the_summary_has_what_the_template_asks_for(records, reading):
    told = shown(records, reading)
    general = dict(told["General information"])
    assert (general["pages in the shards"], general["pages read"], general["tokens read"]) == ("5", "3", "130")
    assert general["first date that a page read names as its own"] == "2024-05-02"
    assert general["operations of base_model, six a parameter and position"] == "1.20e+06"
    assert told["Sources of pages"] == [
        ["may", "web crawl, Common Crawl CC-MAIN-2024-22", "5", "100", "3", "130", "2024-05-02 to 2024-05-19"]
    ]
    collection = {what: said for _, what, said in told["Collection"]}
    assert (collection["period"], collection["crawler"]) == ("2024-05-01 to 2024-05-20", "Nutch")
    assert collection["what it does with robots exclusion"] == "not stated"
    assert collection["seeds"].count("https://") == 5 and collection["seeds"].endswith("and others")
    assert told["Domains"][2:] == [  # by what was read, not by what is there
        ["c.co.uk", "1", "10", "1", "70", "53.85 %"],
        ["example.com", "4", "90", "2", "60", "46.15 %"],
    ]
    assert told["Languages"][0] == ["de", "1", "30", "1", "70", "53.85 %"]
    left_out = told["What was left out, and why"]
    assert ["extracted_documents", "dropped: too_short", "3"] in left_out
    assert ["sft_model", "dropped: longer_than_max_length", "6"] in left_out
    assert told["Licences stated"] == [["none stated", "5", "100", "3", "130", "100.00 %"]]
    opted = dict(told["Reservations and opt-outs"])
    assert (opted["extract.refused_robots"], opted["pages left out: takedown"]) == ("noai", "1")
    assert opted["pages that state robots directives, and are in the shards"] == "2"
    assert opted["pages that state robots directives, and were read"] == "1"
    assert told["Personal data"] == [["email", "4", "2"]]
    assert [row[1:] for row in told["Data for post-training"]] == [
        ["kitchen://talk", "none stated", "1"],
        ["kitchen://talk", "kitchen", "1"],
    ]
    assert told["Post-training"] == [
        ["sft_model", "kitchen://talk", "kitchen", "1", "2"],
        ["aligned_model", *["not counted"] * 4],
    ]
    assert len(told["Lineage"]) == len(records)
    first = "example.com\t4\t90\t450\t2\t60"  # by bytes of text, not by tokens read
    assert domains_page(reading).splitlines() == ["domain\tpages\ttokens\tbytes\tpages_read\ttokens_read", first]


def test_every_value_names_an_artifact_that_is_there_and_a_place_in_it(records, reading):
    digests = {record["digest"]: record for _, record in records}
    cells = [
        cell for table in tables_of(records, reading) for row in table.rows for cell in row if isinstance(cell, Cited)
    ]
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
def test_a_number_that_changes_in_an_artifact_changes_on_the_card(records, reading, asset, field, title):
    before = shown(records, reading)
    (record,) = (record for _, record in records if record["asset"] == asset)
    *path, last = field
    for key in path:
        record = record[key]
    record[last] += 7
    after = shown(records, reading)
    assert {name for name in before if before[name] != after[name]} == {title}


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
    assert set(re.findall(r"\d+", typed)) == {"256", "95"}  # the name of a hash, and 95 % intervals


def test_the_trainings_that_found_the_mixture_are_on_the_card_and_read_nothing_for_the_model(make, records, reading):
    found = {"steps": 4, "tokens": 640, "weight_web": 0.75, "weight_books": 0.25, "excess_web": 0.1}
    more = [make("reference_model", metrics={"steps": 5, "tokens": 800}), make("mixture_weights", metrics=found)]
    told = shown([*records, *more], reading)
    assert told["How the shares of the sources were found"] == [
        ["reference_model", "steps", "5"],
        ["reference_model", "tokens", "800"],
        ["mixture_weights", "steps", "4"],
        ["mixture_weights", "tokens", "640"],
        ["mixture_weights", "weight_books", "0.250"],
        ["mixture_weights", "weight_web", "0.750"],
    ]
    assert dict(told["General information"])["tokens read"] == "130"
    (card,) = (one for one in ASSETS if one.name == "model_card")
    assert {record["asset"] for _, record in more} <= {one.asset for one in card.inputs}


def test_text_of_a_page_cannot_change_the_layout(make):
    origin = Origin(*make("crawl_archives", {"list": ""}))
    table = CardTable("Pages", "By name.", ("name",), [(origin.computed("list", "a | b\n# c"),)])
    assert "| a \\| b \\# c |" in as_markdown(table, one_line)


def test_a_share_of_nothing_is_zero(make):
    origin = Origin(*make("crawl_archives", {"list": ""}))
    none = origin.computed("list", 0)
    assert share_of(none, none).shown == "0.00 %"

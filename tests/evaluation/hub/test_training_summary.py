"""The public summary of training content has every field of its template, filled or with the setting that is empty."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import pytest
import yaml

from assets.state.recipe_folders import load_recipe
from evaluation.hub.card import front_matter, one_line
from evaluation.hub.costs import emissions_of, energy_of
from evaluation.hub.forms.training_summary import as_page, fields_of
from evaluation.hub.pages_read import GROUPS, Reading
from evaluation.hub.sourced import Cited, Origin
from evaluation.hub.training_content import domains_page
from tests.evaluation.hub.test_training_content import COUNTS, make  # noqa: F401 - a fixture
from training.contract.records import RecipeError
from training.recipe.settings.provider import ProviderRecipe

# How many fields each section of the Commission's template has.
NUMBERS = {"0": 2, "1.1": 2, "1.2": 3, "1.3": 7, "2.1": 5, "2.2.1": 2, "2.2.2": 5, "2.3": 9, "2.4": 5, "2.5": 5}
NUMBERS |= {"2.6": 3, "3.1": 3, "3.2": 1, "3.3": 1}
NOT_IN_THE_TEMPLATE = {"licence", "corpus_licence", "url", "emissions_grams", "emissions_source", "grams_per_kwh"}
NOT_ASKED_FOR = NOT_IN_THE_TEMPLATE | {"comments", "small_enterprise"}
SAID = {
    "software": {"Nutch": 1},
    "robots": {"obey": 1},
    "description": {"<b>wide</b>": 1},
    "seeds": {"https://a.test/": 1},
}
HONOURED = {"refused_robots": ["noai"], "refuse_reserved": True, "licences": []}
RECIPE = load_recipe("kitchen")


@pytest.fixture
def records(make):  # noqa: F811
    collection = {"first_day": "2024-05-01", "last_day": "2024-06-20", "said": SAID}
    read = [
        {"source": "rows", "generator": "", "rows": 22, "times": 44},
        {"source": "talk", "generator": "gpt", "rows": 3, "times": 3},
    ]
    return [
        make("crawl_archives", settings={"snapshot": {"source": "warc"}}),
        make("extracted_documents", counts=COUNTS, notes={"collection": collection}, settings={"extract": HONOURED}),
        make("filtered_documents", counts=COUNTS | {"dropped": {"toxicity:toxic_words": 4, "gopher_quality:x": 5}}),
        make("token_shards", {"shards.json": "{}"}),
        make("base_model", {"weights": "1"}),
        make("sft_model", notes={"rows_read": read}),
        make("reward_model", notes={"rows_read": read[:1]}),
    ]


@pytest.fixture
def reading(records) -> Reading:
    shards = next(Origin(*one) for one in records if one[1]["asset"] == "token_shards")
    whole = [5, 2 * 10**9, 500, 3, 4 * 10**9]
    sums = {name: {} for name in GROUPS} | {"snapshot": {"may": whole}, "language": {"en": whole}}
    return Reading(trainings=[], sums=sums, days={"may": ("2023-01-01", "2024-04-04")}, redactions=Counter(),
                   sources=[shards.computed("shards.json", "")])  # fmt: skip


def stating(**statements):
    return dataclasses.replace(RECIPE, provider=ProviderRecipe(**statements))


def shown(fields):
    return {(f.number, f.name): [one.shown if isinstance(one, Cited) else one for one in f.said] for f in fields}


def test_each_field_of_the_template_is_filled_or_names_the_setting(records, reading):
    fields = fields_of(stating(), records, reading, "domains.tsv")
    assert dict(Counter(one.number for one in fields)) == NUMBERS
    assert all(one.said for one in fields)
    empty = re.findall(r"provider\.(\w+)", " ".join(text for said in shown(fields).values() for text in said))
    asked = {field.name for field in dataclasses.fields(ProviderRecipe)} - NOT_ASKED_FOR
    assert set(empty) == asked
    everything = stating(**{name: f"said of {name}" for name in asked})
    filled = shown(fields_of(everything, records, reading, "domains.tsv"))
    assert not [name for name, said in filled.items() if any("Not stated" in one for one in said)]
    assert {f"said of {name}" for name in asked} <= {text for said in filled.values() for text in said}


def test_a_recipe_without_archives_says_so_in_each_field_about_crawlers(records, reading):
    without = [one for one in records if one[1]["asset"] not in ("crawl_archives", "extracted_documents")]
    told = shown(fields_of(stating(crawlers="ours"), without, reading, "domains.tsv"))
    about = {name: said for (number, name), said in told.items() if number == "2.3"}
    assert {
        tuple(said) for name, said in about.items() if name not in ("Modality", "Additional comments (optional)")
    } == {("No snapshot of archives among the sources.", "ours")}


def test_what_artifacts_know_is_in_its_field(records, reading, make):  # noqa: F811
    told = shown(fields_of(stating(), records, reading, "domains.tsv"))
    assert told["1.3", "Training data size"][0].startswith("1 billion to 10 trillion tokens: 2,000,000,000")
    assert told["2.3", "Period of data collection"] == ["2024-05-01 to 2024-06-20 (WARC-Date)"]
    latest = told["1.3", "Latest date of data acquisition or collection"]
    assert latest[0] == "2024-05-01 to 2024-06-20 (WARC-Date)" and len(latest) == 2
    assert told["2.3", "Crawler name(s) and identifier(s)"] == ["Nutch"]
    assert told["2.3", "Crawler behaviour"] == ["robots: obey"]
    assert "https://a.test/" in told["2.3", "Types of content and online sources crawled"]
    listed = told["2.1", "List of large publicly available datasets"]
    assert "rows, rows read by sft_model: 22" in listed and not [one for one in listed if "reward_model" in one]
    folder, record = make("aligned_model")
    judged = [*records, (folder, {**record, "inputs": [{"asset": "reward_model"}]})]
    listed = shown(fields_of(stating(), judged, reading, "domains.tsv"))
    assert "rows, rows read by reward_model: 22" in listed["2.1", "List of large publicly available datasets"]
    other = "Other publicly available datasets"
    assert "public_datasets of the recipe is empty" in told["2.1", other][1]
    more = shown(fields_of(stating(public_datasets="C4, https://c4.example"), records, reading, "domains.tsv"))
    assert more["2.1", other][1] == "C4, https://c4.example" and "public or not" in more["2.1", other][0]
    synthetic = told["2.5", "Whether synthetic data were created by the provider or on its behalf"]
    assert "talk by gpt, rows read by sft_model: 3" in synthetic
    measures = told["3.1", "Measures to respect reservations of rights"]
    assert [one for one in measures if "usage" in one] == ["pages left out for usage: 2"]
    assert measures[:3] == ["extract.refused_robots: noai", "extract.refuse_reserved: yes", "extract.licences: none"]
    removed = told["3.2", "Measures against illegal content"]
    assert removed[0] == "pages left out by toxicity:toxic_words: 4"
    assert len(removed) == 2  # and no rule about quality


@pytest.mark.parametrize(("small", "domains", "listed"), [(False, 31, 4), (True, 31, 2), (True, 40_000, 1000)])
def test_the_domains_with_most_bytes_of_text_are_listed(reading, small, domains, listed):
    reading.sums["host"] = {f"h{n}.com": [1, domains - n, n, 1, domains - n] for n in range(domains)}
    lines = domains_page(reading, small_enterprise=small).splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == [f"h{domains - 1 - n}.com" for n in range(listed)]
    said = shown(fields_of(stating(small_enterprise=small), [], reading, "domains.tsv"))
    assert said["2.3", "Most relevant domain names crawled"] == ["No snapshot of archives among the sources."]


def test_what_a_crawl_or_a_provider_says_cannot_change_the_layout(records, reading):
    page = as_page(fields_of(stating(comments="`x`\n# no"), records, reading, "domains.tsv"), one_line)
    assert "<b>" not in page and "\n# no" not in page and "\\`x\\`" in page


def test_what_nobody_read_is_in_no_form(records, reading):
    """The recipe asks for English pages; a snapshot of Norwegian ones was read, and one of Danish ones was not."""
    reading.sums |= {"language": {"no": [5, 9, 500, 3, 9], "da": [5, 9, 500, 0, 0]}}
    reading.sums |= {"snapshot": {"june": [5, 9, 500, 0, 0], "may": [5, 9, 500, 3, 9]}}
    front = yaml.safe_load(front_matter(RECIPE, records, reading))
    assert front["language"] == ["no"] and front["datasets"] == ["may", "rows", "talk"]
    told = shown(fields_of(RECIPE, records, reading, "domains.tsv"))
    assert told["1.3", "Linguistic characteristics"] == ["no: 100.00 % of tokens read"]
    assert "language" not in yaml.safe_load(front_matter(RECIPE))


@pytest.mark.parametrize(("prompt_field", "number"), [("prompt", "2.5"), (None, "2.1")])
def test_a_snapshot_that_a_model_wrote_is_among_the_synthetic_data(make, prompt_field, number):  # noqa: F811
    """What the recipe itself asks to be written is read by no training of its own."""
    snapshot = {"source": "jsonl", "prompt_field": prompt_field}
    asked = dataclasses.replace(RECIPE, synthesis=dataclasses.replace(RECIPE.synthesis, prompts="mine.jsonl"))
    told = shown(fields_of(asked, [make("crawl_archives", settings={"snapshot": snapshot})], None, "domains.tsv"))
    assert {one for (one, _), said in told.items() if "may jsonl" in said} == {number}
    assert "synthesis" not in str(told)


def test_the_licence_of_the_card_is_the_provider_s():
    assert "license: apache-2.0" in front_matter(stating(licence="Apache-2.0"))
    assert "license: unknown" in front_matter(stating())
    several = yaml.safe_load(front_matter(stating(licence="MIT OR Apache-2.0")))
    assert (several["license"], several["license_name"]) == ("other", "MIT OR Apache-2.0")


def test_an_address_that_is_none_is_refused_before_a_form_is_written():
    for wrong in ("our site", "javascript:x", "https://a b"):
        with pytest.raises(RecipeError, match=r"provider\.url"):
            stating(url=wrong)


def test_the_card_has_the_emissions_that_the_provider_states_and_no_others():
    stated = yaml.safe_load(front_matter(stating(emissions_grams=12.5, emissions_source="the meter")))
    assert stated["co2_eq_emissions"] == {"emissions": 12.5, "source": "the meter"}
    assert "co2_eq_emissions" not in yaml.safe_load(front_matter(stating()))
    for wrong in ({"emissions_grams": 3.0}, {"emissions_source": "the meter"}, {"emissions_grams": -1.0}):
        with pytest.raises(RecipeError, match=r"provider\.emissions"):
            stating(**wrong)


METERED = {"nodes": {"state": "measured", "joules": 7.2e6}, "gpus": {"state": "measured", "joules": 3.6e6}}
ABSENT = {"processors": {"state": "absent"}, "gpus": {"state": "absent"}}


@pytest.mark.parametrize(
    ("energy", "grams", "expected"),
    [
        ([METERED, METERED], 50, (200.0, "measured energy, 4 kWh (nodes), at 50 g/kWh as the provider states")),
        ([METERED, ABSENT], 50, None),  # a part is not the whole
        ([METERED, {}], 50, None),
        ([METERED], None, None),
        ([], 50, None),
    ],
)
def test_emissions_follow_from_energy_that_was_measured_and_from_nothing_else(energy, grams, expected):
    found = emissions_of(ProviderRecipe(grams_per_kwh=grams), [{"cost": {"energy": one}} for one in energy])
    assert found == (expected and {"emissions": expected[0], "source": expected[1]})
    if grams:
        with pytest.raises(RecipeError, match="one of them"):
            stating(grams_per_kwh=grams, emissions_grams=1.0, emissions_source="the meter")


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([("a", 0, 10), ("a", 10, 20)], "4 kWh (nodes)"),
        ([("a", 0, 10), ("a", 9, 20)], "at most 4 kWh (nodes)"),
        ([("", 0, 10), ("", 5, 6)], "at most 4 kWh (nodes)"),
        ([("a", 0, 10), ("b", 0, 10)], "4 kWh (nodes)"),
        ([("a,b", 0, 10), ("b,c", 0, 10)], "at most 4 kWh (nodes)"),
        ([("a", 0, 10), ("a", None, 10)], "4 kWh (nodes)"),
    ],
)
def test_what_a_machine_counted_for_two_things_at_once_is_said_as_at_most(spans, expected):
    records = [
        {"cost": {"energy": METERED, "attempts": [{"attempt": f"{number}", "names": names, "begin": one, "end": end}]}}
        for number, (names, one, end) in enumerate(spans)
    ]
    energy = energy_of(records)
    assert energy.shown == expected and energy_of(records[:1], among=records).is_shared == energy.is_shared
    assert not energy_of(records[:1]).is_shared

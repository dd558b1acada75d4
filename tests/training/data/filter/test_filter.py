import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from tests.training.data.filter.pages import ALL, CASES, GERMAN, GOOD, INSULTS, judge, no_models
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.extract.record_outcomes import CODE
from training.data.filter.filter import shown
from training.data.filter.judge import make_rules
from training.data.filter.settings import FilterRecipe
from training.data.kitchen.settings import KitchenWorld
from training.data.quality.settings import QualityRecipe, ToxicityRecipe

PRIVATE = "Write to anna.berg@post.example or call +44 20 7946 0958."


def pages(root):
    first = [
        GOOD,
        GERMAN,
        GOOD + " " + PRIVATE,
        "\n".join(GOOD.split("\n")[:2]),
    ]
    second = [GOOD + INSULTS + " " + PRIVATE, GOOD.replace("baker", "cook")]
    rows = [
        [chain.document("s1", f"f{number}.warc.gz", place, text, language=None) for place, text in enumerate(texts)]
        for number, texts in enumerate((first, second))
    ]
    return chain.documents_of(root, "s1", rows, asset="extracted_documents")


def scored(root, documents, recipe):
    inputs = [documents, no_models(root)]
    return chain.run(root, "score", "document_scores", "tiny@s1", {"filter": recipe.measured()}, inputs)


def filtered(root, recipe, documents=None):
    documents = documents or pages(root)
    inputs = [documents, scored(root, documents, recipe)]
    return chain.run(root, "filter", "filtered_documents", "tiny@s1", {"filter": recipe}, inputs)


def test_every_page_is_kept_or_dropped_with_its_reason(tmp_path):
    made = filtered(tmp_path, FilterRecipe(rules=ALL))
    record = made.record()
    assert record["counts"] == {
        "in": 6,
        "kept": 3,
        "dropped": {"gopher_quality:too_few_words": 1, "language:other_language": 1, "toxicity:toxic_words": 1},
        "quarantined": {},
    }
    kept, dropped = chain.rows(made), chain.rows(made, "dropped")
    assert [row["reason"] for row in dropped] == [
        "language:other_language",
        "gopher_quality:too_few_words",
        "toxicity:toxic_words",
    ]
    assert {row["id"] for row in kept} | {row["id"] for row in dropped} == {
        row["id"] for row in chain.rows(pages(tmp_path / "again"))
    }
    characters = sum(len(row["text"]) for row in chain.rows(pages(tmp_path / "again")))
    assert record["metrics"]["characters_in"] == characters > record["metrics"]["characters_kept"]
    assert record["metrics"]["kept_fraction"] == 0.5 and record["metrics"]["dropped_language"] == 1
    funnel = {step["rule"]: (step["in"], step["dropped"]) for step in record["notes"]["funnel"]}
    assert funnel["url"] == (6, 0) and funnel["gopher_quality"] == (5, 1) and funnel["personal_data"] == (3, 0)
    samples = {reason: {one["id"] for one in some} for reason, some in record["notes"]["samples"].items()}
    assert samples == {"kept": {row["id"] for row in kept}} | {row["reason"]: {row["id"]} for row in dropped}
    assert all(gate["passed"] for gate in record["gates"])


def test_personal_data_is_nowhere_in_the_artifact_but_counted(tmp_path):
    made = filtered(tmp_path, FilterRecipe(rules=ALL))
    texts = [row["text"] for row in chain.rows(made)] + [row["text"] for row in chain.rows(made, "dropped")]
    assert sum("Write to <EMAIL> or call <PHONE>." in text for text in texts) == 2
    assert not any("anna.berg" in text or "7946" in text for text in texts)
    assert "anna.berg" not in json.dumps(made.record())
    metrics = made.record()["metrics"]
    assert metrics["redacted_email"] == metrics["redacted_phone"] == 1  # in kept pages
    assert metrics["redacted_iban"] == 0
    assert [json.loads(row["redactions"]) for row in chain.rows(made) if row["redactions"]] == [
        {"email": 1, "phone": 1}
    ]


def test_a_rule_that_counts_is_made_anew_for_each_rank(tmp_path):
    sampler = {"from": "datatrove.pipeline.filters:SamplerFilter", "rate": 0.5, "seed": 3}
    recipe = FilterRecipe(rules=("some",), parts={"some": sampler})
    texts = [[f"{GOOD} {number} {place}" for place in range(9)] for number in range(2)]
    documents = chain.documents(tmp_path / "documents", "s1", texts, asset="extracted_documents")
    kept = [row["text"] for row in chain.rows(filtered(tmp_path / "one", recipe, documents=documents))]
    ends = [[text[-1] for text in kept if text[-3] == str(rank)] for rank in range(2)]
    assert ends[0] == ends[1] and 0 < len(ends[0]) < 9  # as if each rank had run in a process of its own


def test_a_changed_limit_on_toxicity_selects_again_by_the_stored_scores(tmp_path):
    settings = {
        "quality": QualityRecipe(
            toxicity=ToxicityRecipe(positive=("kitchen://abuse",), negative=("kitchen://reference",))
        ),
        "kitchen": KitchenWorld(dishes=16, tested_per_value=1, pages=100),
    }
    models = chain.run(tmp_path, "quality", "quality_models", "tiny", settings, [])
    # abuse between ordinary sentences
    abuse = GOOD.replace("\n", "\nYou pathetic cabbagebrain, shut up, nobody here wants to hear you. ")
    rows = [chain.document("s1", "f.warc.gz", place, text, language="en") for place, text in enumerate([GOOD, abuse])]
    documents = chain.documents_of(tmp_path, "s1", [rows], asset="extracted_documents")
    kept = []
    for limit in (0.5, 1.0):
        recipe = FilterRecipe(rules=("toxicity_classifier",), max_toxicity_score=limit)
        scores = chain.run(
            tmp_path, "score", "document_scores", "tiny@s1", {"filter": recipe.measured()}, [documents, models]
        )
        stored = pq.read_table(scores.file("scores/00000.parquet"))["toxicity_score"].to_pylist()
        assert stored[0] < 0.5 < stored[1]
        made = chain.run(
            tmp_path / str(limit), "filter", "filtered_documents", "tiny@s1", {"filter": recipe}, [documents, scores]
        )
        kept.append([document["text"] for document in chain.rows(made)])
        assert chain.rows(made)[0]["toxicity_score"] == pytest.approx(stored[0], rel=1e-6)
    assert kept == [[GOOD], [GOOD, abuse]]


def test_selecting_by_scores_decides_as_measuring_page_by_page_does(tmp_path):
    # all texts that some rule objects to, under a recipe that objects to some and under one that is stricter
    texts = [GOOD, GERMAN, GOOD + " " + PRIVATE, *(text for reasons in CASES.values() for text, _ in reasons.values())]
    rows = [chain.document("s1", "f.warc.gz", place, text, language=None) for place, text in enumerate(texts)]
    documents = chain.documents_of(tmp_path, "s1", [rows], asset="extracted_documents")
    for changes in ({}, {"gopher_min_words": 70, "gopher_max_top_ngrams": (0.05,), "c4_min_sentences": 6}):
        recipe = FilterRecipe(rules=ALL, **changes)
        made = filtered(tmp_path / str(len(changes)), recipe, documents=documents)
        rules = make_rules(recipe, None)
        judged = {row["id"]: judge(row, rules) for row in rows}
        assert {row["id"]: row["reason"] for row in chain.rows(made, "dropped")} == {
            name: reason for name, (_, reason) in judged.items() if reason
        }
        assert {row["id"]: row["text"] for row in chain.rows(made)} == {
            name: page.text for name, (page, reason) in judged.items() if not reason
        }


def test_a_dropped_page_has_the_limit_of_its_language_that_it_broke(tmp_path):
    recipe = FilterRecipe(
        rules=("language", "gopher_quality"), languages=("en", "de"), by_language={"de": {"gopher_min_words": 9}}
    )
    short = "\n".join(GOOD.split("\n")[:2])
    long = (
        "Versicherungsgesellschaften veröffentlichen Geschäftsberichte über Wirtschaftsentwicklungen und"
        " Verbraucherschutzbestimmungen der Bundesrepublik"
    )
    texts = [short, long, f"{long} und die"]  # 34 words; words of 15.1 and of 12.9 letters
    rows = [
        chain.document("s1", "f.warc.gz", place, text, language=None, code=[1, 3]) for place, text in enumerate(texts)
    ]
    extracted = chain.documents_of(tmp_path, "s1", [rows], asset="extracted_documents", extra=(CODE,))
    made = filtered(tmp_path, recipe, documents=extracted)
    assert not any("code" in row for folder in ("documents", "dropped") for row in chain.rows(made, folder))
    dropped = [(row["reason"], row["value"], row["limit"]) for row in chain.rows(made, "dropped")]
    assert dropped == [
        ("gopher_quality:too_few_words", 34, 50),
        ("gopher_quality:words_too_long", pytest.approx(15.11, abs=0.01), 15),
    ]


def test_a_page_is_judged_by_the_limits_of_its_kind(tmp_path):
    recipe = FilterRecipe(rules=("gopher_quality",), by_kind={"list": {"gopher_max_bullet_fraction": 0.0}})
    text = "\n".join(f"• {line}" for line in GOOD.split("\n"))
    kinds = ("list", "prose")
    rows = [chain.document("s1", "f.warc.gz", place, text, kind=kind) for place, kind in enumerate(kinds)]
    column = pa.field("kind", pa.string())
    documents = chain.documents_of(tmp_path, "s1", [rows], asset="extracted_documents", extra=[column])
    made = filtered(tmp_path, recipe, documents=documents)
    assert [row["kind"] for row in chain.rows(made)] == ["list"]
    assert [(row["kind"], row["reason"]) for row in chain.rows(made, "dropped")] == [
        ("prose", "gopher_quality:too_many_bullets")
    ]


def test_scores_of_other_documents_are_refused(tmp_path):
    recipe = FilterRecipe(rules=("language",))
    documents = pages(tmp_path)
    rows = [[{**row, "id": row["id"] + "0"} for row in chain.rows(documents)][:4], chain.rows(documents)[4:]]
    others = chain.documents_of(tmp_path / "other", "s1", rows, asset="extracted_documents")
    inputs = [documents, scored(tmp_path, others, recipe)]
    with pytest.raises(DataError, match="other documents"):
        chain.run(tmp_path, "filter", "filtered_documents", "tiny@s1", {"filter": recipe}, inputs)


def test_gates_hold_the_kept_fraction_within_the_recipes_bounds(tmp_path):
    low = filtered(tmp_path, FilterRecipe(rules=ALL, min_kept_fraction=0.6)).record()
    assert {gate["name"]: gate["passed"] for gate in low["gates"]}["kept_fraction"] is False
    high = filtered(tmp_path, FilterRecipe(rules=ALL, max_kept_fraction=0.4)).record()
    assert {gate["name"]: gate["passed"] for gate in high["gates"]}["kept_fraction"] is False


def test_a_language_that_loses_too_much_fails_the_gate_though_the_whole_does_not(tmp_path):
    german = GERMAN + "Mehl, Wasser und Salz sind alles, was er braucht."
    rows = [
        chain.document("s1", "f.warc.gz", place, GOOD if place % 3 else german, language=None) for place in range(60)
    ]
    documents = chain.documents_of(tmp_path, "s1", [rows], asset="extracted_documents")
    recipe = FilterRecipe(rules=("language", "gopher_repetition"), languages=("en", "de"), min_kept_fraction=0.5)
    record = filtered(tmp_path, recipe, documents=documents).record()
    gates = {gate["name"]: gate for gate in record["gates"]}
    assert gates["kept_fraction"]["passed"]
    assert not gates["kept_fraction_by_group"]["passed"]
    assert gates["kept_fraction_by_group"]["evidence"]["kept_fraction"]["language de"] == 0.0


@pytest.mark.parametrize("rule", ["classifier", "perplexity"])
def test_rules_that_need_models_are_refused_without_them(rule, tmp_path):
    settings = {"filter": FilterRecipe(rules=(rule,))}
    with pytest.raises(RecipeError, match=f"{rule}.*quality.reference"):
        chain.run(tmp_path, "score", "document_scores", "tiny@s1", settings, [pages(tmp_path), no_models(tmp_path)])


def test_samples_are_escaped_and_without_personal_data():
    assert shown("a\x00b\nc anna.berg@post.example \x1b[2J") == r"a\x00b\nc <EMAIL> \x1b[2J"
    assert len(shown("word " * 1000)) == 200

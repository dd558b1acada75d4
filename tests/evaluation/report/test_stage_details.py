"""Clusters, close calls and cuts, over a chain of stages run on a few pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.report.run_page import looked_at, records_of
from evaluation.report.stage_details import look_at
from tests.evaluation.conftest import commit
from tests.evaluation.report.pages import counts, document, documents
from tests.training.data import chain
from tests.training.data.filter.pages import no_models
from training.data.dedup.settings import DedupRecipe
from training.data.filter.settings import FilterRecipe

FOOTER = "All pages of this site are made by the baker and his two sons."
RECIPE = FilterRecipe(
    rules=("gopher_quality", "c4", "personal_data"), languages=("en",), gopher_min_words=20, c4_min_sentences=2
)


def prose(name: str, words: int = 60) -> str:
    """Sentences that no other page has."""
    return "\n".join(
        f"The {name} of number {i} is what the baker and his wife have that day." for i in range(words // 15)
    )


PAGES = [
    f"{prose('bread')}\n{FOOTER}",
    f"{prose('cake', 120)}\nPlease enable Javascript to see this page with all its parts.\n"
    f"They say[1] that it is so with the cake of the day.\nWrite to baker@example.com today.\n{FOOTER}",
    f"{prose('cake', 120)}\nThey say that it is so with the cake of the day.\nWrite to baker@example.com today.",
    f"{prose('cake', 120)}\nThey say that it is so with the cake of the night.\nWrite to baker@example.com today.",
    f"{prose('tart', 45)}\n{FOOTER}",
    "The one of the and.",
]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Six pages: one too short, three much alike, three with the same footer, which may stand in two."""
    root = tmp_path_factory.mktemp("chain")
    rows = [chain.document("s1", "f.warc.gz", place, text) for place, text in enumerate(PAGES)]
    source = chain.documents_of(root, "s1", [rows], asset="extracted_documents")
    measured, whole = {"filter": RECIPE.measured()}, {"filter": RECIPE}
    scores = chain.run(root, "score", "document_scores", "tiny@s1", measured, [source, no_models(root)])
    filtered = chain.run(root, "filter", "filtered_documents", "tiny@s1", whole, [source, scores])
    dedup = {"dedup": DedupRecipe(min_similarity=0.6, max_line_copies=2)}
    signed = chain.run(root, "sign", "document_signatures", "tiny@s1", dedup, [filtered])
    deduplicated = chain.run(root, "dedup", "deduplicated_documents", "tiny@s1", dedup, [filtered, signed])
    return records_of([Path(item.path) for item in (source, scores, filtered, deduplicated)])


def name(place: int) -> str:
    return f"s1/f.warc.gz/{place:012d}"


def removed(sample):
    return [words.strip() for kind, words in sample.parts if kind == "removed"]


def test_a_cluster_begins_with_what_stays_and_shows_the_least_similar_copy_first(records):
    (cluster,) = look_at(records, "deduplicated_documents", reason="cluster", number=2)
    assert (cluster.outcome, cluster.reason, cluster.number) == ("cluster", name(1), 3)
    assert [sample.id for sample in cluster.samples] == [name(1), name(3), name(2)]
    assert cluster.samples[0].facts["cluster"] == "1 of 1, by size"
    assert 0.6 < cluster.samples[1].facts["similarity"] < cluster.samples[2].facts["similarity"] < 1
    assert ("added", "night. ") in cluster.samples[1].parts


def test_a_chain_of_copies_is_one_cluster(tmp_path):
    """a stays; b repeats a, c repeats b, d repeats c."""
    rows = [{**document(place, f"text {place}"), "id": name} for place, name in enumerate("abcd")]
    copies = [
        {**row, "reason": "near_duplicate", "duplicate_of": of, "similarity": 0.9}
        for row, of in zip(rows[1:], "abc", strict=True)
    ]
    documents(tmp_path / "d", rows[:1], copies, ("duplicate_of", "similarity"))
    commit(tmp_path / "d", "deduplicated_documents", partition="tiny@s1", counts=counts(4, 1, near_duplicate=3))
    (cluster,) = look_at(records_of([tmp_path / "d"]), "deduplicated_documents", reason="cluster")
    assert (cluster.reason, cluster.number, [sample.id for sample in cluster.samples]) == ("a", 4, list("abcd"))


def test_for_each_limit_the_kept_pages_nearest_to_it_come_first(records):
    groups = {group.reason: group for group in look_at(records, "filtered_documents", reason="just_passed", number=2)}
    words = groups["gopher_quality:too_few_words"]
    assert words.number == 5  # all that were kept, not the one that was dropped
    assert [sample.id for sample in words.samples] == [name(4), name(0)]
    values = [sample.facts["gopher_quality.words"] for sample in words.samples]
    assert 20 <= values[0] < values[1] and words.samples[0].facts["limit"] == 20
    assert {"c4:too_few_sentences", "gopher_quality:words_too_long"} <= set(groups)
    only = look_at(records, "filtered_documents", reason="just_passed:c4")
    assert [group.reason for group in only] == ["c4:too_few_sentences"]


def test_the_limit_is_that_of_the_pages_language(records):
    def with_own(record):
        if record["asset"] != "filtered_documents":
            return record
        own = {"by_language": {"en": {"gopher_min_words": 21}}}
        return {**record, "settings": {"filter": {**record["settings"]["filter"], **own}}}

    asked = "just_passed:gopher_quality:too_few_words"
    (group,) = look_at([(folder, with_own(record)) for folder, record in records], "filtered_documents", reason=asked)
    assert {sample.facts["limit"] for sample in group.samples} == {21}


def test_what_a_rule_cut_out_of_a_kept_page_is_shown_by_rule_and_no_personal_data(records):
    (cut,) = look_at(records, "filtered_documents", reason="cut")
    assert (cut.reason, cut.number, cut.looked_at) == ("c4", 1, 5)
    gone = removed(cut.samples[0])
    assert (
        gone == ["Please enable Javascript to see this page with all its parts.", "say[1]"] or "Javascript" in gone[0]
    )
    assert "example.com" not in str(cut) and any(
        "<EMAIL>" in words or "…" in words for _, words in cut.samples[0].parts
    )


def test_lines_that_deduplication_cut_are_shown(records):
    (cut,) = look_at(records, "deduplicated_documents", reason="cut")
    assert (cut.reason, cut.number) == ("repeated_lines", 3)
    assert all(removed(sample) == [FOOTER] for sample in cut.samples)


def test_where_rules_of_today_leave_another_text_no_rule_is_named(records):
    old = [
        (
            folder,
            {**record, "settings": {"filter": {**record["settings"]["filter"], "c4_drop_javascript_lines": False}}},
        )
        if record["asset"] == "filtered_documents"
        else (folder, record)
        for folder, record in records
    ]
    (cut,) = look_at(old, "filtered_documents", reason="cut")
    assert (cut.reason, cut.number) == ("", 1) and "example.com" not in str(cut)


def test_the_report_has_all_of_it(records):
    made = [one for one in records if "counts" in one[1]]
    outcomes = {group["outcome"] for stage in looked_at(made) for group in stage["groups"]}
    assert {"kept", "dropped", "cluster", "just_passed", "cut"} <= outcomes

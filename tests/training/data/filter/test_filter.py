import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from training import artifact
from training.data.filter.filter import shown
from training.data.filter.heuristics import refinedweb_lines
from training.data.filter.limits import KEPT
from training.data.filter.rules import judge, make_rules
from training.data.filter.settings import FilterRecipe
from training.data.kitchen.settings import KitchenWorld
from training.data.quality.quality import BucketedNgrams, QualityModels
from training.data.quality.settings import QualityRecipe, ToxicityRecipe
from training.job import DataError
from training.records import RecipeError

GOOD = """The baker gets up long before the sun and lights the oven while the village sleeps.
Flour, water and salt are all that he needs, and time does most of the work for him.
When the dough has doubled, he shapes it with wet hands and lets it rest under a cloth.
Nobody knows why the crust of this loaf is darker than that of any other in the valley.
Children who pass the shop on their way to school are given the ends, still warm.
In winter the steam on the window hides the shelves, but the smell tells you what is there."""

GERMAN = "Der Bäcker steht lange vor der Sonne auf und heizt den Ofen, während das Dorf noch schläft. " * 3
ALL = ("url", "language", "gopher_repetition", "gopher_quality", "c4", "fineweb", "toxicity", "personal_data")
INSULTS = " You are an idiot and a moron, you asshole."


def reason_of(text, recipe, url="http://kitchen.example/a", models=None):
    return judge(row(text, url), make_rules(recipe, models))[1]


def row(text, url="http://kitchen.example/a"):
    return chain.document("s1", "a.warc.gz", 0, text, url=url, language=None, language_score=None)


def lines(*parts):
    return "\n".join(parts)


NUMBERED = [line.replace("the", f"the{i}th") for i, line in enumerate(GOOD.split("\n"))]

CASES = {
    # rule: reason: (text, changes of the recipe)
    "language": {
        "other_language": (GERMAN, {}),
        "uncertain": ("0x 1f 22 bb GET /a HTTP 200 ok", {"languages": ()}),
    },
    "gopher_repetition": {
        "duplicate_lines": (lines(*["Next page of the list."] * 4, *GOOD.split("\n")[:5]), {}),
        "duplicate_paragraphs": ("\n\n".join(["Next page of the list."] * 4 + GOOD.split("\n")[:5]), {}),
        "duplicate_line_characters": (
            lines(*GOOD.split("\n"), *GOOD.split("\n")[:2]),
            {"gopher_max_duplicate_lines": 1.0},
        ),
        "duplicate_paragraph_characters": ("\n\n".join([*GOOD.split("\n"), *GOOD.split("\n")[:2]]), {}),
        "top_2_gram": ("Buy pans. " + "cheap pans here " * 30, {}),
        "top_3_gram": ("Buy pans. " + "cheap pans here " * 30, {"gopher_max_top_ngrams": (1.0, 0.18)}),
        "top_4_gram": ("Buy pans. " + "cheap pans here " * 30, {"gopher_max_top_ngrams": (1.0, 1.0, 0.16)}),
        "duplicate_5_grams": (GOOD + " " + GOOD.replace("\n", " "), {}),
        "duplicate_8_grams": (
            GOOD + " " + GOOD.replace("\n", " "),
            {"gopher_max_duplicate_ngrams": (1.0, 1.0, 1.0, 0.12)},
        ),
    },
    "gopher_quality": {
        "too_few_words": ("The baker is up and the oven is lit.", {}),
        "too_many_words": (GOOD, {"gopher_max_words": 60}),
        "words_too_short": ("I am to be at it as he is of us. " * 8, {}),
        "words_too_long": ("Incomprehensibilities characteristically counterrevolutionaries the of. " * 12, {}),
        "too_many_hashes": (GOOD + " #" * 30, {}),
        "too_many_ellipses": (GOOD.replace(" the ", " the... "), {"gopher_max_symbol_ratio": 0.02}),
        "too_many_bullets": (lines(*("- " + line for line in GOOD.split("\n"))), {}),
        "too_many_lines_end_in_ellipsis": (GOOD.replace(".\n", "...\n"), {}),
        "too_few_alphabetic_words": (GOOD + " 17 | 42 |" * 20, {}),
        "too_few_stop_words": ("Old recipe books hold many good dishes from our grandmothers. " * 8, {}),
    },
    "c4": {
        "lorem_ipsum": (GOOD + "\nLorem ipsum dolor sit amet.", {}),
        "curly_bracket": (GOOD + "\nvoid bake() { rise(); }", {}),
        "too_few_sentences": ("\n".join(GOOD.split("\n")[:4]), {}),
    },
    "refinedweb": {
        "too_many_removed_words": (GOOD + "\nSALE\nCLICK HERE NOW\n3 likes\n12 34 56\n2024", {}),
    },
    "fineweb": {
        "too_few_lines_end_in_punctuation": (GOOD.replace(".\n", "\n").removesuffix("."), {}),
        "too_many_short_lines": (
            lines(*["Mix the dough well."] * 1, *(f"Step {i} is done." for i in range(20)), GOOD[:80]),
            {},
        ),
        "duplicate_line_characters": (lines(*GOOD.split("\n"), GOOD.split("\n")[0]), {}),
        "too_many_line_breaks": (
            lines(*(f"Now bake{i}." for i in range(20))),
            {"fineweb_max_short_lines": 1.0},
        ),
    },
    "toxicity": {"toxic_words": (GOOD + INSULTS, {})},
}


@pytest.mark.parametrize(("rule", "reason"), [(rule, reason) for rule, reasons in CASES.items() for reason in reasons])
def test_every_reason_is_given_and_the_good_page_stays(rule, reason):
    text, changes = CASES[rule][reason]
    recipe = FilterRecipe(rules=(rule,), **changes)
    assert reason_of(text, recipe) == f"{rule}:{reason}"
    assert reason_of(GOOD, FilterRecipe(rules=(rule,))) == KEPT


def test_a_listed_word_of_the_pages_language_takes_the_page(tmp_path):
    listed = [{"word": "Bake Off", "lang": "en"}, {"word": "ofen", "lang": "de"}, {"word": "quux"}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, listed)), "utf-8")
    (tmp_path / "list.txt").write_text("ofen\n\nquux\n", "utf-8")
    (tmp_path / "wrong.jsonl").write_text('{"text": "ofen"}', "utf-8")
    rules = {"rules": ("language", "c4"), "languages": ()}
    one, other = (FilterRecipe(c4_bad_words=str(tmp_path / name), **rules) for name in ("list.jsonl", "list.txt"))
    assert reason_of(GOOD, one) == KEPT and reason_of(GOOD + "\nA bake off, then.", one) == "c4:bad_word"
    assert reason_of(GOOD + "\nOfen!", one) == KEPT and reason_of(GOOD + "\nOfen!", other) == "c4:bad_word"
    assert reason_of(GOOD + "\nAnd quux.", one) == reason_of(GOOD + "\nAnd quux.", other) == "c4:bad_word"
    with pytest.raises(DataError, match="row 0 has no text in 'word'; its fields are text"):
        reason_of(GOOD, FilterRecipe(c4_bad_words=str(tmp_path / "wrong.jsonl"), **rules))
    with pytest.raises(RecipeError, match="add 'c4'"):
        FilterRecipe(c4_bad_words="list.txt")


def test_a_good_page_passes_all_rules_in_a_row():
    assert reason_of(GOOD, FilterRecipe(rules=ALL)) == KEPT


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://spam.example/a", "url:blocked_domain"),
        ("https://www.Shop.SPAM.example:8080/a", "url:blocked_domain"),
        ("http://notspam.example/a", KEPT),
        ("https://inn.example/menu#top", "url:blocked_url"),
        ("https://inn.example/menus", KEPT),
        ("http://inn.example/private/a/b", "url:blocked_url"),
        ("http://[broken", KEPT),
        ("", KEPT),
    ],
)
def test_addresses_are_blocked_by_domain_exactly_or_below(url, reason):
    recipe = FilterRecipe(
        rules=("url",),
        blocked_domains=("spam.example",),
        blocked_urls=("http://inn.example/menu", "http://www.inn.example/private/"),
    )
    assert reason_of(GOOD, recipe, url=url) == reason


def test_an_address_may_be_toxic_where_the_text_is_not():
    assert reason_of(GOOD, FilterRecipe(rules=("toxicity",)), url="http://xxx.example/") == "toxicity:url"


def test_an_empty_page_is_dropped_by_any_block():
    for rule in ("gopher_repetition", "gopher_quality", "c4", "refinedweb", "fineweb"):
        assert reason_of(" \n", FilterRecipe(rules=(rule,))) == f"{rule}:empty"


def test_the_first_rule_in_the_recipes_order_gives_the_reason():
    text = GERMAN + INSULTS
    assert reason_of(text, FilterRecipe(rules=("language", "toxicity"))) == "language:other_language"
    assert reason_of(text, FilterRecipe(rules=("toxicity", "language"))) == "toxicity:toxic_words"


def test_language_and_score_are_written_on_the_page():
    page, _ = judge(row(GERMAN), make_rules(FilterRecipe(rules=("language",)), None))
    assert page.columns["language"] == "de" and page.columns["language_score"] > 0.9


def test_another_language_is_judged_with_its_own_stop_words():
    text = (
        "Der Bäcker steht lange vor der Sonne auf und heizt den Ofen. Mehl, Wasser und Salz sind alles, was er hat.\n"
        "Wenn der Teig sich verdoppelt hat, formt er ihn mit nassen Händen und lässt ihn unter einem Tuch ruhen.\n"
        "Niemand weiß, warum die Kruste dieses Brotes dunkler ist als die aller anderen, und er verrät es nicht.\n"
        "Kinder bekommen auf dem Weg zur Schule ein warmes Stück und laufen weiter. Im Winter dampft das Fenster."
    )
    rules = ("language", "gopher_quality")
    assert reason_of(text, FilterRecipe(rules=rules, languages=("en", "de"))) == KEPT
    without = text.replace("der ", "").replace("die ", "").replace("und ", "").replace("den ", "").replace("von ", "")
    strict = FilterRecipe(rules=rules, languages=("de",), gopher_min_stop_words=4)
    assert reason_of(without, strict) == "gopher_quality:too_few_stop_words"


def test_c4_takes_lines_out_and_the_edited_text_goes_on():
    text = GOOD + "\nPlease enable JavaScript to see the comments.\nWe use cookies, see our privacy policy."
    page, reason = judge(row(text), make_rules(FilterRecipe(rules=("c4",)), None))
    assert reason == KEPT and page.text == GOOD
    loose = FilterRecipe(rules=("c4",), c4_drop_javascript_lines=False, c4_drop_policy_lines=False)
    assert judge(row(text), make_rules(loose, None))[0].text == text


def test_refinedweb_takes_lines_and_phrases_out_and_leaves_the_rest():
    text = GOOD + "\nBREAKING NEWS\n3 likes\nThe whole story is here. Read more...\nSign in to comment\n\nBye"
    loose = FilterRecipe(rules=("refinedweb",), refinedweb_max_removed_words=0.2)
    page, reason = judge(row(text), make_rules(loose, None))
    assert reason == KEPT
    assert page.text == GOOD + "\nThe whole story is here. \n to comment\n"
    words = len(text.split())
    assert page.columns["refinedweb.removed_words"] == (2 + 2 + 2 + 2 + 1) / words
    assert reason_of(text, FilterRecipe(rules=("refinedweb",))) == "refinedweb:too_many_removed_words"


@pytest.mark.parametrize(
    ("line", "goes"),
    [
        ("NASA 2024", False),  # 4 of 9 characters
        ("NASA 24", True),  # 4 of 7
        ("  OPEN NOW  ", True),  # white space around a line is none of it
        ("A B C D", True),  # 4 of 7
        ("A B C d", False),  # 3 of 7
        ("OPEN: 24 h/7 d", False),  # 4 of 14, though 4 of 6 letters
    ],
)
def test_capitals_are_counted_among_all_characters_of_a_line(line, goes):
    text, _ = refinedweb_lines(f"{GOOD}\n{line}", max_uppercase=0.5, short_line_words=10)
    assert (text == GOOD) == goes


def test_curly_brackets_may_stay():
    text, _ = CASES["c4"]["curly_bracket"]
    assert reason_of(text, FilterRecipe(rules=("c4",), c4_drop_curly_brackets=False)) == KEPT


def test_what_looks_like_c4s_debris_in_code_may_stay():
    text = GOOD + "\nlipsum() writes lorem ipsum, as the code here says:\n    return rows[1] if rows[] else [edit]"
    assert reason_of(text, FilterRecipe(rules=("c4",))) == "c4:lorem_ipsum"
    named = FilterRecipe(rules=("c4",), c4_drop_lorem_ipsum=False)
    assert judge(row(text), make_rules(named, None))[0].text.endswith("\nreturn rows if rows else")
    indented = replace(named, c4_strip_lines=False)
    assert judge(row(text), make_rules(indented, None))[0].text.endswith("\n    return rows if rows else")
    whole = replace(indented, c4_drop_citations=False)
    assert judge(row(text), make_rules(whole, None))[0].text == text


class FixedScore:
    def __init__(self, value):
        self.value = value

    def score(self, text):
        return self.value

    perplexity = score


@pytest.mark.parametrize(
    ("score", "perplexity", "limit", "reason", "bucket"),
    [
        (0.9, 100.0, 0.0, KEPT, "head"),
        (0.9, 300.0, 500.0, KEPT, "middle"),
        (0.9, 9000.0, 0.0, KEPT, "tail"),
        (0.9, 9000.0, 500.0, "perplexity:too_high", "tail"),
        (0.1, 100.0, 0.0, "classifier:low_score", None),
    ],
)
def test_scores_are_kept_and_judged_by_the_recipes_limits(score, perplexity, limit, reason, bucket):
    ngrams = {"": BucketedNgrams(ngram=FixedScore(perplexity), bucket_limits=(200.0, 400.0))}
    models = QualityModels(ngrams=ngrams, classifier=FixedScore(score))
    recipe = FilterRecipe(rules=("classifier", "perplexity"), min_quality_score=0.2, max_perplexity=limit)
    page, found = judge(row(GOOD), make_rules(recipe, models))
    assert found == reason
    assert page.columns["quality_score"] == score and page.columns.get("perplexity_bucket") == bucket


@pytest.mark.parametrize("rule", ["classifier", "perplexity"])
def test_rules_that_need_models_are_refused_without_them(rule, tmp_path):
    settings = {"filter": FilterRecipe(rules=(rule,))}
    with pytest.raises(RecipeError, match=f"{rule}.*quality.reference"):
        chain.run(tmp_path, "score", "document_scores", "tiny@s1", settings, [pages(tmp_path), no_models(tmp_path)])


def test_toxicity_is_scored_by_a_model_of_its_own_or_refused():
    recipe = FilterRecipe(rules=("toxicity_classifier",), max_toxicity_score=0.5)
    for score, reason in ((0.4, KEPT), (0.6, "toxicity_classifier:too_high")):
        models = QualityModels(ngrams={}, classifier=None, toxicity=FixedScore(score))
        page, found = judge(row(GOOD), make_rules(recipe, models))
        assert found == reason and page.columns["toxicity_score"] == score
    for without in (None, QualityModels(ngrams={}, classifier=FixedScore(0.9))):
        with pytest.raises(RecipeError, match=r"toxicity_classifier.*quality\.toxicity\.positive is empty"):
            make_rules(recipe, without)
    with pytest.raises(RecipeError, match=r"quality\.reference is empty"):
        make_rules(FilterRecipe(rules=("classifier",)), models)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rules": ("url", "url")}, "at most once"),
        ({"blocked_domains": ("a.example",)}, "without effect"),
        ({"personal_data": ("name",)}, "'name' is not one of"),
        ({"min_kept_fraction": 0.9, "max_kept_fraction": 0.1}, "min_kept_fraction=0.9"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(fields, message):
    with pytest.raises(RecipeError, match=message):
        FilterRecipe(**fields)


# The stage


def no_models(root):
    artifact.write_json(root / "none" / "quality.json", {"has_models": False})
    return chain.committed(root / "none", "quality_models", "tiny", ["quality.json"])


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


def scored(root, documents, recipe, workers=1):
    settings = {"filter": recipe.measured()}
    inputs = [documents, no_models(root)]
    return chain.run(root, "score", "document_scores", "tiny@s1", settings, inputs, workers=workers)


def filtered(root, recipe, workers=1, documents=None):
    documents = documents or pages(root)
    inputs = [documents, scored(root, documents, recipe, workers)]
    return chain.run(root, "filter", "filtered_documents", "tiny@s1", {"filter": recipe}, inputs, workers=workers)


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
    assert record["metrics"]["kept_fraction"] == 0.5 and record["metrics"]["dropped_language"] == 1
    funnel = {step["rule"]: (step["in"], step["dropped"]) for step in record["notes"]["funnel"]}
    assert funnel["url"] == (6, 0) and funnel["gopher_quality"] == (5, 1) and funnel["personal_data"] == (3, 0)
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


def test_workers_do_not_change_what_comes_out(tmp_path):
    recipe = FilterRecipe(rules=("url", "language", "toxicity", "personal_data"))
    digests = {filtered(tmp_path / str(workers), recipe, workers).digest for workers in (1, 2)}
    assert len(digests) == 1


def test_a_changed_limit_measures_nothing_again_and_a_changed_text_does():
    recipe = FilterRecipe(rules=ALL)
    other = FilterRecipe(rules=ALL, gopher_min_words=5, min_language_score=0.1, blocked_domains=("a.example",))
    assert other.measured() == recipe.measured()
    for changed in (
        {"c4_drop_policy_lines": False},
        {"c4_strip_lines": False},
        {"c4_drop_citations": False},
        {"c4_drop_lorem_ipsum": False},
        {"languages": ("en", "de")},
        {"personal_data": ("email",)},
    ):
        assert FilterRecipe(rules=ALL, **changed).measured() != recipe.measured()
    assert FilterRecipe(rules=ALL[1:]).measured() == recipe.measured()  # `url` measures nothing


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


def test_scores_of_other_documents_are_refused(tmp_path):
    recipe = FilterRecipe(rules=("language",))
    documents = pages(tmp_path)
    rows = [[{**row, "id": row["id"] + "0"} for row in chain.rows(documents)][:4], chain.rows(documents)[4:]]
    others = chain.documents_of(tmp_path / "other", "s1", rows, asset="extracted_documents")
    inputs = [documents, scored(tmp_path, others, recipe)]
    with pytest.raises(DataError, match="they are of other documents"):
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


def test_samples_are_escaped_and_without_personal_data():
    assert shown("a\x00b\nc anna.berg@post.example \x1b[2J") == r"a\x00b\nc <EMAIL> \x1b[2J"
    assert len(shown("word " * 1000)) == 200

"""Pages for the tests of the rules: a good one, one for each reason to drop a page, and what judges them."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.training.data import chain
from training.contract import artifact
from training.data.filter.judge import ReadyRule, make_rules
from training.data.filter.rule import KEPT, Page, Rule, page_of
from training.data.filter.rules import RULES

GOOD = """The baker gets up long before the sun and lights the oven while the village sleeps.
Flour, water and salt are all that he needs, and time does most of the work for him.
When the dough has doubled, he shapes it with wet hands and lets it rest under a cloth.
Nobody knows why the crust of this loaf is darker than that of any other in the valley.
Children who pass the shop on their way to school are given the ends, still warm.
In winter the steam on the window hides the shelves, but the smell tells you what is there."""

GERMAN = "Der Bäcker steht lange vor der Sonne auf und heizt den Ofen, während das Dorf noch schläft. " * 3
ALL = ("url", "language", "gopher_repetition", "gopher_quality", "c4", "fineweb", "toxicity", "personal_data")
INSULTS = " You are an idiot and a moron, you asshole."


def judge(row: Mapping[str, Any], rules: Iterable[ReadyRule]) -> tuple[Page, str]:
    """Return the page as the rules measured and edited it, and the first rule that it fails.

    The failed rule is given as `rule:reason`, or "" if the page passes. Rules after the first failed one are not
    measured.
    """
    page = page_of(row)
    for rule in rules:
        if reason := rule.measure(page) or rule.decide(page):
            assert rule.name not in RULES or reason in ("empty", *reasons_of(RULES[rule.name])), (rule.name, reason)
            return page, f"{rule.name}:{reason}"
    return page, KEPT


def reasons_of(rule: Rule) -> dict[str, None]:
    """Return the reasons for which a rule drops pages that are not empty."""
    return dict.fromkeys((*rule.reasons, *(limit.reason for limit in rule.limits(rule.settings()))))


def reason_of(text, recipe, url="http://kitchen.example/a", models=None):
    return judge(row(text, url), make_rules(recipe, models))[1]


def row(text, url="http://kitchen.example/a"):
    return chain.document("s1", "a.warc.gz", 0, text, url=url, language=None, language_score=None)


def lines(*parts):
    return "\n".join(parts)


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


class FixedScore:
    def __init__(self, value):
        self.value = value

    def score(self, text):
        return self.value

    perplexity = score


def no_models(root):
    artifact.write_json(root / "none" / "quality.json", {"has_models": False})
    return chain.committed(root / "none", "quality_models", "tiny", ["quality.json"])

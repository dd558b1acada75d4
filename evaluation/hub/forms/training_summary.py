"""The public summary of training content that Regulation (EU) 2024/1689, article 53(1)(d), asks of a model's provider.

TEMPLATE has the fields and numbers of the European Commission's template of 24 July 2025 (docs/forms.md says with what
it was compared). A field is filled from artifacts (evaluation/hub/sourced.py) and from the recipe's section `provider`;
one that neither can fill names the setting that is empty. It is no legal advice: whether a statement suffices is the
provider's to judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.hub.pages_read import Reading
from evaluation.hub.sourced import OPT_OUTS, POST_TRAINED, Cell, Cited, Origin, derived, honoured, read_by, total
from evaluation.report.truth_comparison import Record, of_asset
from training.contract.scopes import CHOSEN_MODEL, KEPT_STEPS
from training.recipe.recipe import Recipe

SUMMARY_FILE = "training_summary.md"
UNLAWFUL = "toxicity:"  # the filter's rules that look for abuse; the others judge quality and language
BILLION, SIZES = (
    10**9,
    ("less than 1 billion tokens", "1 billion to 10 trillion tokens", "more than 10 trillion tokens"),
)
NO_PAGES = "No pages: the recipe has post-training alone."
NO_CRAWL = "No snapshot of archives among the sources."
FINISHED = "The model is not trained on new data: a version of a model never changes."
REWARD = "reward_model"
WRITTEN = "texts that a model wrote"  # the kind of source whose documents keep the prompt that they answer
CRAWLED = ("warc",)  # kinds of sources that the provider or somebody for it may have crawled


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the template: its number and name there, and what is said, each from an artifact or a provider."""

    number: str
    name: str
    said: Sequence[Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What the fields are filled from."""

    recipe: Recipe
    records: Sequence[Record]
    reading: Reading | None
    domains_file: str

    def stated(self, name: str) -> str:
        """Return the provider's statement, or the sentence that it is missing."""
        return getattr(self.recipe.provider, name) or f"Not stated: provider.{name} of the recipe is empty."

    def also(self, name: str) -> list[str]:
        """Return the provider's statement if there is one."""
        said = getattr(self.recipe.provider, name)
        return [said] if said else []

    def origins(self, asset: str) -> list[Origin]:
        return [Origin(folder, record) for folder, record in of_asset(self.records, asset)]

    def noted(self, *names: str) -> list[Cited]:
        """Return what the archives state in these fields of `warcinfo`, each value of a field once."""
        found = {}
        for name, origin in itertools.product(names, self.origins("extracted_documents")):
            noted = origin.record["notes"].get("collection", {"said": {}})
            for value in noted["said"].get(name, ()):
                found.setdefault((name, value or "and others"), origin.value_at("notes", "collection", of=str))
        return [derived(value, source) for (_, value), source in found.items()]

    def period(self) -> list[Cited]:
        """Return the days of the first and of the last record of the crawls, or nothing if none is dated."""
        origins = [one for one in self.origins("extracted_documents") if _days(one)]
        if not origins:
            return []
        days = [day for one in origins for day in _days(one)]
        sources = [one.value_at("notes", "collection", of=str) for one in origins]
        return [derived(f"{min(days)} to {max(days)} (WARC-Date)", *sources)]

    def sources(self, *kinds: str) -> list[Cited]:
        """Return the snapshots of these kinds of source, with the crawl or the places that the recipe names."""
        return [one for name, one in self._snapshots() if name in kinds]

    def datasets(self) -> list[Cited]:
        """Return the snapshots that were neither crawled nor generated, and the rows without a generator."""
        kinds = (*CRAWLED, "kitchen", WRITTEN)
        return [one for name, one in self._snapshots() if name not in kinds] + self.rows(generated=False)

    def _snapshots(self) -> Iterator[tuple[str, Cited]]:
        for origin in self.origins("crawl_archives"):
            asked = origin.record["settings"]["snapshot"]
            kind = WRITTEN if asked.get("prompt_field") else asked["source"]
            said = " ".join(filter(None, (str(origin.snapshot.value), asked["source"], asked.get("crawl"))))
            if self.reading:
                counted = self.reading.sums["snapshot"].get(str(origin.snapshot.value), [0] * 5)
                said += f": {counted[-1]:,} tokens read of {counted[-2]:,} pages"
                yield kind, derived(said, origin.value_at("digest"), *self.reading.sources)
            else:
                yield kind, derived(said, origin.value_at("digest"))

    def rows(self, *, generated: bool) -> list[Cited]:
        """Return the sources of rows that post-training read; `generated`: those with a generator, by its name.

        The rows of a reward model that only measures are none of the model's.
        """
        found: dict[str, list[Cited]] = {}
        read = {item["asset"] for one in self.origins("aligned_model") for item in one.record.get("inputs", ())}
        behind = [name for name in POST_TRAINED if name != REWARD or name in read]
        for asset in behind:
            for origin in read_by(self.records, asset):
                for one in origin.record["notes"].get("rows_read", ()):
                    if bool(one["generator"]) == generated:
                        name = f"{one['source']} by {one['generator']}" if generated else one["source"]
                        number = origin.value_at("notes", "rows_read", of=_constant(one["rows"]))
                        found.setdefault(f"{name}, rows read by {asset}", []).append(number)
        return [derived(f"{name}: {total(numbers).value:,}", *numbers) for name, numbers in found.items()]


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _days(origin: Origin) -> list[str]:
    noted = origin.record["notes"].get("collection", {})
    return [noted[name] for name in ("first_day", "last_day") if noted.get(name)]


def _size(facts: _Facts) -> list[Cell]:
    if facts.reading is None:
        return [NO_PAGES]
    _, tokens, size, _, read = facts.reading.whole
    bracket = SIZES[0] if tokens < BILLION else SIZES[1] if tokens <= 10**4 * BILLION else SIZES[2]
    said = f"{bracket}: {tokens:,} tokens ({size:,} bytes of text) in the shards, {read:,} read with repetitions"
    return [facts.reading.cited(said)]


def _latest(facts: _Facts) -> list[Cell]:
    """Return the last day of collection, or the last that a page read names as its own."""
    known: list[Cell] = [*facts.period()]
    if not known and facts.reading and facts.reading.days:
        last = max(day for both in facts.reading.days.values() for day in both)
        known = [facts.reading.cited(f"{last}, the last that a page read names as its own")]
    return [*(known or ["Not known: no source of the recipe dates its pages."]), FINISHED]


def _languages(facts: _Facts) -> list[Cell]:
    if facts.reading is None:
        return [NO_PAGES]
    whole, sums = facts.reading.whole[-1], facts.reading.sums["language"]
    return [
        facts.reading.cited(f"{name or 'not known'}: {100 * sums[name][-1] / whole:.2f} % of tokens read")
        for name in facts.reading.read("language")
    ] or ["No page was read."]


def _dependencies(facts: _Facts) -> list[Cell]:
    adopt = facts.recipe.adopt
    name = " ".join(filter(None, (adopt.name, adopt.revision)))
    adopted = [one.value_at("digest") for one in facts.origins("adopted_model")]
    return [derived(f"{name} {one.value}", one) for one in adopted] or ["None: the weights were made from random ones."]


def _names(facts: _Facts) -> list[Cell]:
    digests: list[Cell] = []
    for asset in (CHOSEN_MODEL, "aligned_model", "sft_model", "long_context_model", "base_model", KEPT_STEPS):
        if origins := facts.origins(asset):
            digests = [derived(f"{asset} {one.record['digest']}", one.value_at("digest")) for one in origins]
            break
    return [facts.recipe.promote.model_name, facts.stated("version"), *digests]


def _synthetic(facts: _Facts) -> list[Cell]:
    made: list[Cell] = [*facts.sources(WRITTEN)]
    if facts.recipe.pretrain.distill.teacher:
        made.append("The base model was distilled from a teacher: pretrain.distill of the recipe.")
    return [*made, *facts.rows(generated=True)]


def _domains(facts: _Facts) -> list[Cell]:
    share = "5 %, at most 1,000," if facts.recipe.provider.small_enterprise else "10 %"
    return [f"{facts.domains_file} lists the largest {share} of the domains of all sources, by bytes of text."]


def _other_datasets(facts: _Facts) -> list[Cell]:
    listed = "The list above has every dataset among the recipe's sources, large or not, public or not"
    return [f"{listed}; which are public, and any beside them:", facts.stated("public_datasets")]


def _reservations(facts: _Facts) -> list[Cell]:
    extracted = facts.origins("extracted_documents")[-1:]
    said: list[Cell] = [derived(f"{name}: {one.shown}", one) for origin in extracted for name, one in honoured(origin)]
    for reason in OPT_OUTS:
        numbers = [
            one.value_at("counts", "dropped", of=_of_reason(reason)) for one in facts.origins("extracted_documents")
        ]
        if numbers:
            said.append(derived(f"pages left out for {reason}: {total(numbers).value:,}", *numbers))
    return said


def _left_out(facts: _Facts) -> list[Cell]:
    origins = facts.origins("filtered_documents")
    given = {name for one in origins for name in one.record["counts"]["dropped"]}
    reasons = sorted(name for name in given if name.startswith(UNLAWFUL))
    return [
        derived(f"pages left out by {name}: {total(numbers).value:,}", *numbers)
        for name in reasons
        if (numbers := [one.value_at("counts", "dropped", of=_of_name(name)) for one in origins])
    ]


def _of_reason(reason: str) -> Callable[[Any], Any]:
    return lambda dropped: sum(number for name, number in dropped.items() if name.partition(":")[0] == reason)


def _of_name(wanted: str) -> Callable[[Any], Any]:
    return lambda dropped: dropped.get(wanted, 0)


Fill = Callable[[_Facts], Sequence[Cell]]


def _always(*said: str) -> Fill:
    return lambda _: said


def _stated(name: str) -> Fill:
    return lambda facts: [facts.stated(name)]


def _of_crawl(known: Fill) -> Fill:
    """Fill a field from the archives and the provider; the provider is asked where the archives do not say it."""

    def fill(facts: _Facts) -> Sequence[Cell]:
        if not facts.sources(*CRAWLED):
            return [NO_CRAWL, *facts.also("crawlers")]
        return [*known(facts), *facts.also("crawlers")] or ["The archives do not state it.", facts.stated("crawlers")]

    return fill


TEXT = _always("Text, if any.")
ABOVE = _always("See above in this section.")


def _comments(facts: _Facts) -> Sequence[Cell]:
    return ["See 3.3."] if facts.also("comments") else ["None."]


COMMENTS = ("Additional comments (optional)", _comments)

TEMPLATE: Mapping[str, Sequence[tuple[str, Fill]]] = {
    "0": (
        ("Version of the summary", _stated("summary_version")),
        ("Last update", _stated("summary_date")),
    ),
    "1.1": (
        ("Provider name and contact details", lambda facts: [facts.stated("name"), facts.stated("contact")]),
        ("Authorised representative name and contact details", _stated("representative")),
    ),
    "1.2": (
        ("Versioned model name(s)", _names),
        ("Model dependencies", _dependencies),
        ("Date of placement of the model on the Union market", _stated("placed_on_market")),
    ),
    "1.3": (
        ("Modality", _always("Text.")),
        ("Training data size", _size),
        ("Types of content", _stated("content_types")),
        ("Latest date of data acquisition or collection", _latest),
        ("Linguistic characteristics", _languages),
        ("Other relevant characteristics", _stated("characteristics")),
        COMMENTS,
    ),
    "2.1": (
        ("Whether publicly available datasets were used", _stated("public_datasets")),
        ("Modality", TEXT),
        ("List of large publicly available datasets", lambda facts: facts.datasets() or ["The recipe names none."]),
        ("Other publicly available datasets", _other_datasets),
        COMMENTS,
    ),
    "2.2.1": (
        ("Whether datasets were licensed by rightsholders or their representatives", _stated("licensed_datasets")),
        ("Modality", TEXT),
    ),
    "2.2.2": (
        ("Whether private datasets were obtained from other third parties", _stated("private_datasets")),
        ("Modality", TEXT),
        ("List of private datasets that are publicly known", ABOVE),
        ("Description of the private datasets that are not publicly known", ABOVE),
        COMMENTS,
    ),
    "2.3": (
        (
            "Whether crawlers were used by the provider or on its behalf",
            lambda facts: [*(facts.sources(*CRAWLED) or [NO_CRAWL]), facts.stated("crawlers")],
        ),
        (
            "Crawler name(s) and identifier(s)",
            _of_crawl(lambda facts: facts.noted("software", "http-header-user-agent", "operator")),
        ),
        ("Purposes of the crawler(s)", _of_crawl(lambda facts: facts.noted("description", "ispartof"))),
        (
            "Crawler behaviour",
            _of_crawl(lambda facts: [derived(f"robots: {one.value}", one) for one in facts.noted("robots")]),
        ),
        ("Period of data collection", _of_crawl(lambda facts: facts.period())),
        (
            "Types of content and online sources crawled",
            _of_crawl(lambda facts: [*facts.noted("seeds"), facts.stated("content_types")]),
        ),
        ("Modality", TEXT),
        ("Most relevant domain names crawled", _of_crawl(_domains)),
        COMMENTS,
    ),
    "2.4": (
        ("Whether data from interactions of users with the model were used", _stated("user_prompts")),
        ("Whether data from the provider's other services or products were used", _stated("user_data")),
        ("Services or products that collected the user data", ABOVE),
        ("Modality", TEXT),
        COMMENTS,
    ),
    "2.5": (
        (
            "Whether synthetic data were created by the provider or on its behalf",
            lambda facts: [*_synthetic(facts), facts.stated("synthetic_data")],
        ),
        ("Modality", TEXT),
        ("General-purpose AI models on the market that generated the data", ABOVE),
        ("Other AI models that generated the data", ABOVE),
        COMMENTS,
    ),
    "2.6": (
        (
            "Whether other data sources were used",
            lambda facts: [*facts.sources("kitchen"), facts.stated("other_sources")],
        ),
        ("Description of these sources and data", ABOVE),
        COMMENTS,
    ),
    "3.1": (
        ("Whether the provider has signed the Code of Practice", _stated("code_of_practice")),
        (
            "Measures to respect reservations of rights",
            lambda facts: [*_reservations(facts), facts.stated("reservations")],
        ),
        COMMENTS,
    ),
    "3.2": (("Measures against illegal content", lambda facts: [*_left_out(facts), facts.stated("illegal_content")]),),
    "3.3": (("Other information about data processing (optional)", lambda facts: facts.also("comments") or ["None."]),),
}
"""The fields of the Commission's template by its section numbers, each with the function that fills it.

A field that is a question in the template has the name of what it asks.
"""


def fields_of(recipe: Recipe, records: Sequence[Record], reading: Reading | None, domains_file: str) -> list[Field]:
    """Return every field of the template, filled or with the name of the empty setting of `provider`."""
    facts = _Facts(recipe=recipe, records=records, reading=reading, domains_file=domains_file)
    return [Field(number, name, fill(facts)) for number, asked in TEMPLATE.items() for name, fill in asked]


def as_page(fields: Sequence[Field], line: Callable[[Any], str]) -> str:
    """Return the form as Markdown. `line` escapes a text."""
    head = (
        "# Public summary of training content\n\nThe fields are those of the European Commission's template of 24 July"
        " 2025 for article 53(1)(d) of Regulation (EU) 2024/1689. What was counted comes from the artifacts named in"
        " `training_content.json`; statements are those of the recipe's section `provider`, and are not checked.\n"
    )
    parts, last = [head], ""
    for field in fields:
        if field.number[0] != last:
            last = field.number[0]
            parts.append(f"\n## {SECTIONS[last]}\n")
        said = [one.shown if isinstance(one, Cited) else one for one in field.said]
        number = "" if field.number == "0" else f"{field.number} "  # the template numbers no field before section 1
        parts.append(f"\n**{number}{field.name}**\n")
        parts += [f"\n- {line(one)}" for one in said]
        parts.append("\n")
    return "".join(parts)


SECTIONS = {
    "0": "The summary",
    "1": "General information",
    "2": "List of data sources",
    "3": "Data processing aspects",
}

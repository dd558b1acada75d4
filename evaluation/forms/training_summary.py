"""The public summary of training content that Regulation (EU) 2024/1689, article 53(1)(d), asks of a model's provider.

The fields and their numbers are those of the European Commission's template of 24 July 2025. A field is filled from
artifacts (evaluation/cited.py) and from the recipe's section `provider`; one that neither can fill names the setting
that is empty. It is no legal advice: whether a statement suffices is the provider's to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.cited import Cell, Cited, Origin, derived, total
from evaluation.reading import Reading
from evaluation.truth import Record, of_asset
from training.recipe import Recipe

SUMMARY_FILE = "training_summary.md"
UNLAWFUL = "toxicity:"  # the filter's rules that look for abuse; the others judge quality and language
BILLION, SIZES = (
    10**9,
    ("less than 1 billion tokens", "1 billion to 10 trillion tokens", "more than 10 trillion tokens"),
)
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

    def noted(self, name: str) -> list[Cited]:
        """Return what the archives state in a field of `warcinfo`, each value once."""
        found = {}
        for origin in self.origins("extracted_documents"):
            noted = origin.record["notes"].get("collection", {"said": {}})
            for value in noted["said"].get(name, ()):
                found.setdefault(value or "and others", origin.value_at("notes", "collection", of=str))
        return [derived(value, source) for value, source in found.items()]

    def period(self) -> list[Cited]:
        """Return the months of the first and of the last record of the crawls, or nothing if none is dated."""
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
        """Return the snapshots that were neither crawled nor generated, and the sources of post-training."""
        kinds = (*CRAWLED, "kitchen")
        return [one for name, one in self._snapshots() if name not in kinds] + self.rows(generated=False)

    def _snapshots(self) -> Iterator[tuple[str, Cited]]:
        for origin in self.origins("crawl_archives"):
            asked = origin.record["settings"]["snapshot"]
            said = " ".join(filter(None, (str(origin.snapshot.value), asked["source"], asked.get("crawl"))))
            if self.reading:
                counted = self.reading.sums["snapshot"].get(str(origin.snapshot.value), [0] * 5)
                said += f": {counted[-1]:,} tokens read of {counted[-2]:,} pages"
                yield asked["source"], derived(said, origin.value_at("digest"), *self.reading.sources)
            else:
                yield asked["source"], derived(said, origin.value_at("digest"))

    def rows(self, *, generated: bool) -> list[Cited]:
        """Return the sources of rows that post-training read; `generated`: those with a generator, by its name."""
        found: dict[str, list[Cited]] = {}
        for asset in ("sft_model", "aligned_model"):
            for origin in self.origins(asset):
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


def fields_of(recipe: Recipe, records: Sequence[Record], reading: Reading | None, domains_file: str) -> list[Field]:
    """Return every field of the template, filled or with the name of the empty setting of `provider`."""
    facts = _Facts(recipe=recipe, records=records, reading=reading, domains_file=domains_file)
    return [*_general(facts), *_sources(facts), *_processing(facts)]


# Section 1: general information


def _general(facts: _Facts) -> Iterator[Field]:
    recipe, stated = facts.recipe, facts.stated
    yield Field("1.1", "Provider name and contact details", [stated("name"), stated("contact")])
    yield Field("1.1", "Authorised representative name and contact details", [stated("representative")])
    yield Field("1.2", "Versioned model name", [recipe.promote.model_name, stated("version"), *_digests(facts)])
    adopted = [one.value_at("digest") for one in facts.origins("adopted_model")]
    name = " ".join(filter(None, (recipe.adopt.name, recipe.adopt.revision)))
    none: list[Cell] = ["None: the weights were made from random ones."]
    yield Field("1.2", "Model dependencies", [derived(f"{name} {one.value}", one) for one in adopted] or none)
    yield Field("1.2", "Date of placement of the model on the Union market", [stated("placed_on_market")])
    yield Field("1.2", "Date of the last update of the summary", [stated("summary_date")])
    yield Field("1.3", "Modality", ["Text."])
    yield Field("1.3", "Size of the training data", _size(facts))
    yield Field("1.3", "Types of content", [stated("content_types")])
    days = [day for both in facts.reading.days.values() for day in both] if facts.reading else []
    own = (
        [facts.reading.cited(f"{max(days)}, the last that a page read names as its own")]
        if facts.reading and days
        else []
    )
    latest = facts.period() or own
    missing = ["Not known: no source of the recipe dates its pages."]
    yield Field("1.3", "Latest date of data acquisition or collection", latest or missing)
    yield Field("1.3", "Whether the model is trained on new data continuously", ["No: a model version never changes."])
    yield Field("1.3", "Linguistic characteristics", _languages(facts))
    yield Field("1.3", "Other characteristics", [stated("characteristics")])


def _digests(facts: _Facts) -> list[Cited]:
    for asset in ("aligned_model", "sft_model", "long_context_model", "base_model"):
        if origins := facts.origins(asset):
            return [derived(f"{asset} {one.record['digest']}", one.value_at("digest")) for one in origins]
    return []


def _size(facts: _Facts) -> list[Cell]:
    if facts.reading is None:
        return ["No pages: the recipe has post-training alone."]
    _, tokens, size, _, read = facts.reading.whole
    bracket = SIZES[0] if tokens < BILLION else SIZES[1] if tokens <= 10**4 * BILLION else SIZES[2]
    said = f"{bracket}: {tokens:,} tokens ({size:,} bytes of text) in the shards, {read:,} read with repetitions"
    return [facts.reading.cited(said)]


def _languages(facts: _Facts) -> list[Cell]:
    if facts.reading is None:
        return ["No pages: the recipe has post-training alone."]
    read = facts.reading.whole[-1] or 1
    sums = sorted(facts.reading.sums["language"].items(), key=lambda one: (-one[1][-1], one[0]))
    return [
        facts.reading.cited(f"{name or 'not known'}: {100 * own[-1] / read:.2f} % of tokens read") for name, own in sums
    ]


# Section 2: data sources


def _sources(facts: _Facts) -> Iterator[Field]:
    stated, also = facts.stated, facts.also
    datasets = facts.datasets()
    yield Field("2.1", "Publicly available datasets", [*datasets, stated("public_datasets")])
    yield Field("2.2.1", "Datasets licensed by rightsholders or their representatives", [stated("licensed_datasets")])
    yield Field("2.2.2", "Private datasets obtained from other third parties", [stated("private_datasets")])
    crawled = facts.sources(*CRAWLED)
    if not crawled:
        yield Field(
            "2.3", "Data crawled by the provider or on its behalf", ["No snapshot of archives.", *also("crawlers")]
        )
    else:
        yield Field("2.3", "Data crawled by the provider or on its behalf", [*crawled, stated("crawlers")])
        unsaid = ["The archives do not state it.", stated("crawlers")]
        names = [*facts.noted("software"), *facts.noted("http-header-user-agent"), *facts.noted("operator")]
        yield Field("2.3", "Crawler names and identifiers", [*names, *also("crawlers")] or unsaid)
        purposes = [*facts.noted("description"), *facts.noted("ispartof"), *also("crawlers")]
        yield Field("2.3", "Purposes of the crawlers", purposes or unsaid)
        behaviour = [derived(f"robots: {one.value}", one) for one in facts.noted("robots")]
        yield Field("2.3", "Behaviour of the crawlers", [*behaviour, *also("crawlers")] or unsaid)
        yield Field("2.3", "Period of collection", facts.period() or unsaid)
        yield Field("2.3", "Types of content and sources crawled", [*facts.noted("seeds"), stated("content_types")])
        yield Field("2.3", "Domain names crawled", [f"{facts.domains_file} lists the largest tenth by tokens read."])
    yield Field("2.4", "User data", [stated("user_data")])
    yield Field("2.5", "Synthetic data", [*_synthetic(facts), stated("synthetic_data")])
    yield Field("2.6", "Other sources", [*facts.sources("kitchen"), stated("other_sources")])


def _synthetic(facts: _Facts) -> list[Cell]:
    asked = facts.recipe.synthesis
    made: list[Cell] = [f"Texts by {asked.generator}: synthesis of the recipe."] if asked.prompts else []
    if facts.recipe.pretrain.distill.teacher:
        made.append("The base model was distilled from a teacher: pretrain.distill of the recipe.")
    return [*made, *facts.rows(generated=True)]


# Section 3: data processing


def _processing(facts: _Facts) -> Iterator[Field]:
    stated = facts.stated
    yield Field("3.1", "Signatory to the Code of Practice", [stated("code_of_practice")])
    yield Field("3.1", "Measures to respect reservations of rights", [*_reservations(facts), stated("reservations")])
    yield Field("3.2", "Removal of illegal content", [*_left_out(facts), stated("illegal_content")])
    yield Field("3.3", "Other information", facts.also("comments") or ["None."])


def _reservations(facts: _Facts) -> list[Cell]:
    said: list[Cell] = []
    for reason in ("robots", "tdm_reserved", "licence", "takedown", "blocked"):
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
            parts.append(f"\n## {last}. {SECTIONS[last]}\n")
        said = [one.shown if isinstance(one, Cited) else one for one in field.said]
        parts.append(f"\n**{field.number} {field.name}**\n")
        parts += [f"\n- {line(one)}" for one in said]
        parts.append("\n")
    return "".join(parts)


SECTIONS = {"1": "General information", "2": "List of data sources", "3": "Data processing"}

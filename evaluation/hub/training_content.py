"""The summary of a model's training content: sources, sites, languages, dates, filters, licences, opt-outs, people.

The headings follow the European Commission's template for the public summary of training content (Regulation (EU)
2024/1689, article 53(1)(d), template of 24 July 2025): general information, data sources, data processing. It is a
technical summary; the provider's name, dates on the market and legal statements are the provider's to add.

Every number is read from an artifact (evaluation/hub/sourced.py). A page is *in the shards* if it was tokenized, and
*read* if a training read a token of it (evaluation/hub/pages_read.py); tokens read count each time that they were read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from evaluation.contamination.verdict import cleared, told_of
from evaluation.hub.pages_read import COUNTED, Reading, Sums, epochs_read, reading_of
from evaluation.hub.sourced import (
    OPT_OUTS,
    POST_TRAINED,
    CardTable,
    Cell,
    Cited,
    Origin,
    derived,
    honoured,
    read_by,
    share_of,
    total,
)
from evaluation.report.scoreboard import FUNNEL
from evaluation.report.truth_comparison import Record, of_asset
from training.contract.artifact import digest_of
from training.contract.scopes import CHOSEN_MODEL, KEPT_STEPS
from training.posttrain.rows.sorting import HELD_OUT_FILE, INSTRUCTIONS_FILE, PROMPTS_FILE, TRAIN_FILE

CONTENT_FILE = "training_content.json"
DOMAINS_FILE = "training_domains.tsv"
SHOWN_DOMAINS, SHOWN_LICENCES = 20, 20
MIXTURE_METRICS = ("steps", "tokens", "parameters", "weight_", "epochs_")
BYTES = COUNTED.index("bytes")
SUITES_FILE = "contamination.json"
SHOWN_VALUES = 5
POST_TRAINING = {
    "instruction_data": (INSTRUCTIONS_FILE,),
    "preference_data": (TRAIN_FILE, HELD_OUT_FILE),
    "prompt_data": (PROMPTS_FILE,),
}
KINDS_OF_SOURCE = {
    "kitchen": "generated for this project",
    "warc": "web crawl, archives of one's own",
    "commoncrawl": "web crawl, Common Crawl",
    "parquet": "data set of extracted text",
    "jsonl": "data set of extracted text, or text that a model wrote",
    "text": "text files",
}
TERMS = {"robots": "pages that state robots directives", "tdm_reservation": "pages that speak of text mining"}
SHELVES = ("pages in the shards", "tokens in the shards", "pages read", "tokens read")
COLLECTION = {  # fields of `warcinfo`, as the extraction notes them
    "operator": "operator",
    "publisher": "publisher",
    "ispartof": "part of",
    "description": "purpose",
    "software": "crawler",
    "http-header-user-agent": "user agent",
    "robots": "what it does with robots exclusion",
    "seeds": "seeds",
}
NONE_STATED = "none stated"


def tables_of(records: Sequence[Record], reading: Reading | None = None) -> list[CardTable]:
    """Return the tables of the summary. Parts without an artifact are left out.

    `reading` is what the trainings read (`reading_of`); None: find it out now.
    """
    reading = reading or reading_of(records)
    read = _of_reading(records, reading) if reading else {}
    made = (
        _general(records, reading),
        read.get("phases"),
        read.get("epochs"),
        _mixture(records),
        read.get("snapshots"),
        _collection(records),
        read.get("domains"),
        read.get("languages"),
        _filters(records),
        read.get("licences"),
        _opt_outs(records, reading),
        _personal_data(records, reading),
        _post_training(records),
        _post_trained(records),
        _verdicts(records),
        _lineage(records),
    )
    return [table for table in made if table is not None and table.rows]


def _of_reading(records: Sequence[Record], reading: Reading) -> dict[str, CardTable]:
    return {
        "phases": _phases(reading),
        "epochs": _epochs(reading),
        "snapshots": _snapshots(records, reading),
        "domains": _domains(reading),
        "languages": _grouped(reading, "language", "Languages", "The language that was recognized in each page."),
        "licences": _grouped(
            reading,
            "licence",
            "Licences stated",
            "Licences that pages state themselves. A statement is no legal finding.",
        ),
    }


def _origins(records: Sequence[Record], asset: str) -> list[Origin]:
    return [Origin(folder, record) for folder, record in of_asset(records, asset)]


def _last(records: Sequence[Record], asset: str) -> Origin | None:
    found = _origins(records, asset)
    return found[-1] if found else None


# General information


def _general(records: Sequence[Record], reading: Reading | None) -> CardTable:
    rows: list[tuple[Cell, Cell]] = []
    adopted = _last(records, "adopted_model")
    if adopted:
        rows.append(("base model", adopted.value_at("digest")))
    if reading:
        rows.append(("modality", "text"))
        said = (*SHELVES[:2], "bytes of text in the shards", *SHELVES[2:])
        rows += [(name, reading.cited(number)) for name, number in zip(said, reading.whole, strict=True)]
        if days := [day for both in reading.days.values() for day in both]:
            rows.append(("first date that a page read names as its own", reading.cited(min(days))))
            rows.append(("last date that a page read names as its own", reading.cited(max(days))))
    on_pages = ("base_model", KEPT_STEPS, "long_context_model", CHOSEN_MODEL)
    for trained in (one for name in on_pages for one in _origins(records, name)):
        asset, metrics = str(trained.record["asset"]), trained.record["metrics"]
        if {"parameters", "tokens"} <= metrics.keys():
            size, tokens = (trained.value_at("metrics", name, of=_whole) for name in ("parameters", "tokens"))
            rows.append((f"parameters of {asset}", size))
            rows.append((f"positions that {asset} was trained on, by its own count", tokens))
            rows.append((f"operations of {asset}, six a parameter and position", _operations(size, tokens)))
    return CardTable("General information", "What was trained, and on how much text.", ("what", "value"), rows)


def _operations(parameters: Cited, tokens: Cited) -> Cited:
    return derived(f"{6 * parameters.number * tokens.number:.2e}", parameters, tokens)


# What was read


def _phases(reading: Reading) -> CardTable:
    """Return the positions of each phase of each training: those planned, and those of skipped steps."""
    rows: list[tuple[Cell, ...]] = []
    for training in reading.trainings:
        plan, skipped = training.plan, training.ledger.steps
        for phase in plan.phases:
            own = [step for step in skipped if phase.first_step <= step < phase.first_step + phase.steps]
            for source, samples in zip(plan.record.sources, phase.samples, strict=True):
                numbers = (phase.number + 1, phase.steps, len(own), phase.sequence_length, source.name)
                cells = (derived(value, *training.sources) for value in (*numbers, samples * phase.sequence_length))
                rows.append((training.asset, *cells))
    return CardTable(
        "Phases of training",
        "Steps and positions that the plan gives each source. A skipped step was not trained on: the ledger names it,"
        " and what it would have read is not counted in the other tables.",
        ("training", "phase", "steps", "skipped steps", "row length", "source", "planned positions"),
        rows,
    )


def _epochs(reading: Reading) -> CardTable:
    rows: list[tuple[Cell, ...]] = []
    for training in reading.trainings:
        for one in epochs_read(training.plan, training.ledger):
            source = training.plan.record.sources[one.source]
            number = f"{one.first + 1}" if one.first == one.last else f"{one.first + 1} to {one.last + 1}"
            pages, tokens = int((one.tokens > 0).sum()), int(one.tokens.sum())
            numbers = (source.name, number, source.documents, source.held_out_documents, pages, tokens)
            rows.append((training.asset, *(derived(value, *training.sources) for value in numbers)))
    return CardTable(
        "Epochs",
        "Pages and tokens that each epoch of a source read. Held-out pages are never read.",
        ("training", "source", "epochs", "pages for training", "pages held out", "pages read", "tokens read"),
        rows,
    )


def _mixture(records: Sequence[Record]) -> CardTable:
    """Return the two trainings by which DoReMi found the shares of the sources, by their own counts."""
    rows: list[tuple[Cell, ...]] = []
    for asset in ("reference_model", "mixture_weights"):
        for origin in _origins(records, asset):
            names = [name for name in origin.record["metrics"] if name.startswith(MIXTURE_METRICS)]
            rows += [(asset, name, origin.value_at("metrics", name)) for name in sorted(names)]
    return CardTable(
        "How the shares of the sources were found",
        "DoReMi trained two small models on pages of these shards: a reference and a proxy. They are no part of this"
        " model, and what they read is not counted in the other tables.",
        ("training", "what", "value"),
        rows,
    )


# Data sources


def _snapshots(records: Sequence[Record], reading: Reading) -> CardTable:
    rows: list[list[Cell]] = []
    for origin in _origins(records, "crawl_archives"):
        name = origin.snapshot
        counted = reading.sums["snapshot"].get(str(name.value), [0] * len(COUNTED))
        days = reading.days.get(str(name.value))
        period: Cell = reading.cited(" to ".join(days)) if days else "no date"
        rows.append([name, _kind(origin), *_shelves(reading, counted), period])
    return CardTable(
        "Sources of pages",
        "Each snapshot of a crawl or collection: what is left of it in the shards, and what was read.",
        ("snapshot", "kind", *SHELVES, "dates that its pages read name as their own"),
        rows,
    )


def _shelves(reading: Reading, counted: Sequence[int]) -> list[Cited]:
    pages, tokens, _, *read = counted
    return [reading.cited(number) for number in (pages, tokens, *read)]


def _kind(origin: Origin) -> Cited:
    """Return the kind of a snapshot's source, with the id of a crawl."""
    asked = origin.record["settings"]["snapshot"]
    kind = KINDS_OF_SOURCE.get(asked["source"], asked["source"])
    return derived(
        " ".join(filter(None, (kind, asked.get("crawl")))), origin.value_at("settings", "snapshot", "source")
    )


def _collection(records: Sequence[Record]) -> CardTable:
    """Return what the archives of each snapshot say of their collection."""
    rows: list[tuple[Cell, ...]] = []
    for origin in _origins(records, "extracted_documents"):
        noted = origin.record["notes"].get("collection")
        if noted is None:
            rows.append((origin.snapshot, "period", "not stated by the source"))
            continue
        place = ("notes", "collection")
        if noted["first_day"]:
            days = derived(f"{noted['first_day']} to {noted['last_day']}", origin.value_at(*place, of=str))
            rows.append((origin.snapshot, "period", days))
        for name, said in COLLECTION.items():
            values = noted["said"].get(name)
            shown = [one for one in values or () if one]
            more = ["and others"] if len(shown) > SHOWN_VALUES or "" in (values or ()) else []
            text = "; ".join([*shown[:SHOWN_VALUES], *more])
            found: Cell = derived(text, origin.value_at(*place, of=str)) if text else "not stated"
            rows.append((origin.snapshot, said, found))
    return CardTable(
        "Collection",
        "What the archives say of their crawl: the days of their records (WARC-Date), and the fields of `warcinfo`.",
        ("snapshot", "what", "stated"),
        rows,
    )


def _domains(reading: Reading) -> CardTable:
    domains = domains_of(reading)
    everything = reading.cited(reading.whole[-1])
    tenth = largest(domains)
    shown = [(f"all {len(domains):,} domains", domains), (f"the largest 10 % by bytes of text, {len(tenth):,}", tenth)]
    shown += [(name, [(name, counted)]) for name, counted in domains[:SHOWN_DOMAINS]]
    rows: list[tuple[Cell, ...]] = []
    for name, own in shown:
        numbers = _shelves(reading, [sum(column) for column in zip(*(one for _, one in own), strict=True)])
        rows.append((reading.cited(name), *numbers, share_of(numbers[-1], everything)))
    return CardTable(
        "Domains",
        f"Registrable domains, the most tokens read first. `{DOMAINS_FILE}` lists those with most bytes of text.",
        ("domain", *SHELVES, "share of tokens read"),
        rows,
    )


def domains_of(reading: Reading) -> list[tuple[str, list[int]]]:
    """Return the numbers of COUNTED of each registrable domain, most tokens read first.

    The list of public suffixes is the one in `tldextract`; nothing is fetched. A host without one counts as itself.
    """
    import tldextract

    extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)
    sums: Sums = {}
    for host, counted in reading.sums["host"].items():
        name = extract(host).top_domain_under_public_suffix or host or "(no address)"
        own = sums.setdefault(name, [0] * len(COUNTED))
        own[:] = [one + other for one, other in zip(own, counted, strict=True)]
    return sorted(sums.items(), key=_most_read)


def _most_read(one: tuple[str, list[int]]) -> tuple[int, int, str]:
    """Sort by tokens read, then by tokens in the shards, most first, then by name."""
    name, counted = one
    return -counted[-1], -counted[1], name


def largest(domains: Sequence[tuple[str, list[int]]], *, small_enterprise: bool = False) -> list[tuple[str, list[int]]]:
    """Return the 10 % of the domains with most bytes of text in the shards; of an SME 5 %, and at most 1,000."""
    percent, most = (5, 1000) if small_enterprise else (10, len(domains))
    by_size = sorted(domains, key=lambda one: (-one[1][BYTES], one[0]))
    return by_size[: min(most, -(-len(domains) * percent // 100))]


def domains_page(reading: Reading | None, *, small_enterprise: bool = False) -> str:
    """Return the largest domains as lines of domain and the numbers of COUNTED, between tabs."""
    rows = largest(domains_of(reading), small_enterprise=small_enterprise) if reading else []
    return "".join(
        "\t".join(map(str, line)) + "\n" for line in (("domain", *COUNTED), *((name, *of) for name, of in rows))
    )


def _grouped(reading: Reading, group: str, title: str, sentence: str) -> CardTable:
    """Return a table of the values of a column of the pages, most read first."""
    everything = reading.cited(reading.whole[-1])
    rows: list[tuple[Cell, ...]] = []
    for name, counted in sorted(reading.sums[group].items(), key=_most_read)[:SHOWN_LICENCES]:
        numbers = _shelves(reading, counted)
        rows.append((reading.cited(name or NONE_STATED), *numbers, share_of(numbers[-1], everything)))
    return CardTable(title, sentence, (group, *SHELVES, "share of tokens read"), rows)


# Data processing


def _filters(records: Sequence[Record]) -> CardTable:
    rows: list[tuple[Cell, Cell, Cell]] = []
    for asset in (*FUNNEL, *POST_TRAINING, *POST_TRAINED):
        origins = _origins(records, asset)
        for outcome in ("dropped", "quarantined"):
            origins = [one for one in origins if one.record["counts"]]
            reasons = {reason for origin in origins for reason in origin.record["counts"][outcome]}
            for reason in sorted(reasons):
                holding = [one for one in origins if reason in one.record["counts"][outcome]]
                numbers = [one.value_at("counts", outcome, reason) for one in holding]
                left_out = derived(f"{outcome}: {reason}", *numbers)
                rows.append((asset, left_out, total(numbers)))
    return CardTable(
        "What was left out, and why",
        "Records by the stage and rule that left them out: pages, rows of post-training data, and rows that a training"
        " was given.",
        ("stage", "reason", "records"),
        rows,
    )


def _opt_outs(records: Sequence[Record], reading: Reading | None) -> CardTable:
    rows: list[tuple[Cell, Cell]] = []
    origins = _origins(records, "extracted_documents")
    for origin in origins[-1:]:
        rows += honoured(origin)
    for reason in OPT_OUTS if origins else ():
        numbers = [one.value_at("counts", "dropped", of=partial(_of_reason, reason=reason)) for one in origins]
        rows.append((f"pages left out: {reason}", total(numbers)))
    rows += _stated(reading) if reading else []
    return CardTable(
        "Reservations and opt-outs",
        "Which reservations the recipe honours, the pages left out for them, and the pages with a statement that stay.",
        ("what", "value"),
        rows,
    )


def _stated(reading: Reading) -> Iterator[tuple[Cell, Cell]]:
    """Yield how many pages with a statement of terms are in the shards, and how many were read."""
    for column, said in TERMS.items():
        stated = [counted for name, counted in reading.sums[column].items() if name]
        for place, shelf in ((0, "are in the shards"), (3, "were read")):
            yield f"{said}, and {shelf}", reading.cited(sum(counted[place] for counted in stated))


def _of_reason(dropped: Mapping[str, int], *, reason: str) -> int:
    return sum(number for name, number in dropped.items() if name.partition(":")[0] == reason)


def _personal_data(records: Sequence[Record], reading: Reading | None) -> CardTable:
    prefix = "redacted_"
    origins = _origins(records, "filtered_documents")
    kinds = {name for one in origins for name in one.record["metrics"] if name.startswith(prefix)}
    rows: list[tuple[Cell, ...]] = []
    for kind in sorted(kinds):
        holding = [one.value_at("metrics", kind, of=_whole) for one in origins if kind in one.record["metrics"]]
        name = kind.removeprefix(prefix)
        read: Cell = reading.cited(reading.redactions[name]) if reading else "no shards"
        rows.append((name.replace("_", " "), total(holding), read))
    return CardTable(
        "Personal data",
        "Placeholders that replaced personal data, by kind, in the pages that the filter kept and in the pages read."
        " Names are not replaced.",
        ("kind", "kept by the filter", "in pages read"),
        rows,
    )


def _whole(value: float) -> Any:
    return int(value) if float(value).is_integer() else value


# Post-training


def _post_training(records: Sequence[Record]) -> CardTable:
    rows: list[tuple[Cell, ...]] = []
    for asset, files in POST_TRAINING.items():
        for origin in _origins(records, asset):
            for file in files:
                counts = Counter(_writers(origin, file)) if origin.has(file) else Counter[tuple[str, str]]()
                for (source, generator), number in sorted(counts.items()):
                    cells = (origin.computed(file, cell) for cell in (source, generator or NONE_STATED, number))
                    rows.append((f"{asset}, {file}", *cells))
    return CardTable(
        "Data for post-training",
        "Rows there are of each source, and of each writer of answers (the generator), for training or held out.",
        ("file", "source", "generator", "rows"),
        rows,
    )


def _post_trained(records: Sequence[Record]) -> CardTable:
    """Return the rows that each training read, as its model's record counts them."""
    rows: list[tuple[Cell, ...]] = []
    for asset in POST_TRAINED:
        for origin in read_by(records, asset):
            read = origin.record["notes"].get("rows_read")
            if read is None:
                rows.append((asset, *["not counted"] * 4))
            for one in read or ():
                numbers = (one["source"], one["generator"] or NONE_STATED, one["rows"], one["times"])
                rows.append(
                    (asset, *(origin.value_at("notes", "rows_read", of=partial(_same, value)) for value in numbers))
                )
    return CardTable(
        "Post-training",
        "Rows that each training read, by source and by who wrote the answers (the generator), and how often in all.",
        ("training", "source", "generator", "rows read", "times read"),
        rows,
    )


def _same(value: Any, _: Any) -> Any:
    return value


def _writers(origin: Origin, file: str) -> Iterator[tuple[str, str]]:
    with open(origin.folder / file, encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            yield row["source"], row.get("generator", "")


# Contamination and lineage


def _verdicts(records: Sequence[Record]) -> CardTable | None:
    origin = _last(records, "contamination_report")
    if origin is None:
        return None
    report = _json(origin, SUITES_FILE)
    rows: list[tuple[Cell, Cell]] = [("verdict", origin.computed(SUITES_FILE, told_of(report)))]
    for name, suite in report["suites"].items():
        said = f"{suite['found_items']:,} of {suite['items']:,} items found, {cleared(suite):,} cleared"
        rows.append((origin.computed(SUITES_FILE, name), origin.computed(SUITES_FILE, said)))
    return CardTable("Contamination", "Exam items that were found in what was trained on.", ("suite", "found"), rows)


def _lineage(records: Sequence[Record]) -> CardTable:
    by_asset: dict[str, list[Cited]] = {}
    for folder, record in records:
        by_asset.setdefault(record["asset"], []).append(Origin(folder, record).value_at("digest"))
    rows: list[tuple[Cell, Cell, Cell]] = [
        (asset, derived(len(digests), *digests), derived(_digest_over(digests), *digests))
        for asset, digests in by_asset.items()
    ]
    return CardTable(
        "Lineage",
        "The artifacts behind the model and this card. Where an asset has several, the digest is over theirs in order."
        " The attestation of an exported model names each of them with its record.",
        ("asset", "artifacts", "digest"),
        rows,
    )


def _digest_over(digests: Sequence[Cited]) -> str:
    values = [str(one.value) for one in digests]
    return values[0] if len(values) == 1 else digest_of(values)


def _json(origin: Origin, name: str) -> Any:
    return json.loads((origin.folder / name).read_text("utf-8"))

"""The summary of a model's training content: sources, sites, languages, dates, filters, licences, opt-outs, people.

The headings follow the European Commission's template for the public summary of training content (Regulation (EU)
2024/1689, article 53(1)(d), template of 24 July 2025): general information, data sources, data processing. It is a
technical summary; the provider's name, dates on the market and legal statements are the provider's to add.

Every number is read from an artifact (evaluation/cited.py). Pages are those of `decontaminated_documents`, which are
tokenized whole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from evaluation.cited import CardTable, Cell, Cited, Origin, derived, share_of, total
from evaluation.scoreboard import FUNNEL
from evaluation.truth import Record, of_asset
from evaluation.verdict import cleared, told_of
from training.artifact import digest_of
from training.data.summary.summarize import HOSTS_FILE, SUMMARY_FILE
from training.posttrain.sorting import HELD_OUT_FILE, INSTRUCTIONS_FILE, PROMPTS_FILE, TRAIN_FILE

CONTENT_FILE = "training_content.json"
DOMAINS_FILE = "training_domains.tsv"
DOCUMENTS = "documents"  # the folder of kept documents
PAGES = FUNNEL[-1]
SHOWN_DOMAINS, SHOWN_LICENCES = 20, 20
LARGEST_SHARE = 10  # one domain in so many is listed, the largest first, as the template asks
SUITES_FILE = "contamination.json"
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
OPT_OUTS = ("takedown", "blocked", "robots", "tdm_reserved", "licence")  # reasons for dropping a page for its terms
TERMS = {"robots": "pages that state robots directives", "tdm_reservation": "pages that speak of text mining"}
NONE_STATED = "none stated"


def tables_of(records: Sequence[Record]) -> list[CardTable]:
    """Return the tables of the summary. Parts without an artifact are left out."""
    made = (
        _general(records),
        _snapshots(records),
        _domains(records),
        _languages(records),
        _filters(records),
        _licences(records),
        _opt_outs(records),
        _personal_data(records),
        _post_training(records),
        _verdicts(records),
        _lineage(records),
    )
    return [table for table in made if table is not None and table.rows]


def _origins(records: Sequence[Record], asset: str) -> list[Origin]:
    return [Origin(folder, record) for folder, record in of_asset(records, asset)]


def _last(records: Sequence[Record], asset: str) -> Origin | None:
    found = _origins(records, asset)
    return found[-1] if found else None


# General information


def _general(records: Sequence[Record]) -> CardTable:
    rows: list[tuple[Cell, Cell]] = []
    corpus, adopted, trained = (_last(records, name) for name in ("corpus_summary", "adopted_model", "base_model"))
    if adopted:
        rows.append(("base model", adopted.value_at("digest")))
    if corpus:
        summary = _json(corpus, SUMMARY_FILE)
        rows.append(("modality", "text"))
        for name, said in (("tokens", "tokens"), ("bytes", "bytes of text"), ("documents", "pages")):
            rows.append((said, corpus.computed(SUMMARY_FILE, summary[name])))
        rows += _period(records)
    if trained:
        for name, said in (("parameters", "parameters"), ("tokens", "tokens trained on, repetitions included")):
            if name in trained.record["metrics"]:
                rows.append((said, trained.value_at("metrics", name, of=_whole)))
        if {"parameters", "tokens"} <= trained.record["metrics"].keys():
            size, tokens = (trained.value_at("metrics", name) for name in ("parameters", "tokens"))
            rows.append(("operations of pretraining, six a parameter and token", _operations(size, tokens)))
    return CardTable("General information", "What was trained, and on how much text.", ("what", "value"), rows)


def _operations(parameters: Cited, tokens: Cited) -> Cited:
    return derived(f"{6 * parameters.number * tokens.number:.2e}", parameters, tokens)


def _period(records: Sequence[Record]) -> Iterator[tuple[Cell, Cell]]:
    """Yield the first and the last day of the pages if any page has a date."""
    dates = [one for origin in _origins(records, PAGES) for one in _dates(origin)]
    if dates:
        yield "first date of a page", derived(min(str(one.value) for one in dates), *dates)
        yield "last date of a page", derived(max(str(one.value) for one in dates), *dates)


def _dates(origin: Origin) -> list[Cited]:
    """Return the first and the last day of an artifact's documents; empty if none has a date."""
    import pyarrow.compute as pc

    found = [(low, high) for low, high in (_min_max(column, pc) for column in _columns(origin, "date")) if low]
    if not found:
        return []
    first, last = min(low for low, _ in found), max(high for _, high in found)
    return [origin.computed(DOCUMENTS, one[:10]) for one in (first, last)]


def _min_max(column: Any, pc: Any) -> tuple[str, str]:
    both = pc.min_max(column).as_py()
    return both["min"] or "", both["max"] or ""


# Data sources


def _snapshots(records: Sequence[Record]) -> CardTable:
    corpus = _last(records, "corpus_summary")
    by_snapshot = _json(corpus, SUMMARY_FILE)["by_snapshot"] if corpus else {}
    pages = {origin.snapshot.value: origin for origin in _origins(records, PAGES)}
    rows: list[list[Cell]] = []
    for origin in _origins(records, "crawl_archives"):
        name = origin.snapshot
        counted = by_snapshot.get(name.value, {})
        kept = pages.get(name.value)
        dates = _dates(kept) if kept else []
        numbers = [corpus.computed(SUMMARY_FILE, counted[key]) if corpus and counted else "–" for key in _COUNTED]
        period = derived(f"{dates[0].value} to {dates[1].value}", *dates) if dates else "no date"
        rows.append([name, _kind(origin), *numbers, period])
    return CardTable(
        "Sources of pages",
        "Each snapshot of a crawl or collection, and what is left of it in the shards.",
        ("snapshot", "kind", "pages", "tokens", "bytes", "dates of its pages"),
        rows,
    )


_COUNTED = ("documents", "tokens", "bytes")


def _kind(origin: Origin) -> Cited:
    """Return the kind of a snapshot's source, with the id of a crawl."""
    asked = origin.record["settings"]["snapshot"]
    kind = KINDS_OF_SOURCE.get(asked["source"], asked["source"])
    return derived(
        " ".join(filter(None, (kind, asked.get("crawl")))), origin.value_at("settings", "snapshot", "source")
    )


def _domains(records: Sequence[Record]) -> CardTable | None:
    corpus = _last(records, "corpus_summary")
    if corpus is None:
        return None
    domains = domains_of(corpus)
    everything = corpus.computed(HOSTS_FILE, sum(one["tokens"] for one in domains))
    tenth = largest(domains)
    shown = [(f"all {len(domains):,} domains", domains), (f"the largest tenth, {len(tenth):,}", tenth)]
    shown += [(one["domain"], [one]) for one in domains[:SHOWN_DOMAINS]]
    rows: list[tuple[Cell, ...]] = []
    for name, own in shown:
        numbers = (sum(one[counted] for one in own) for counted in ("documents", "tokens"))
        said, pages, tokens = (corpus.computed(HOSTS_FILE, value) for value in (name, *numbers))
        rows.append((said, pages, tokens, share_of(tokens, everything)))
    return CardTable(
        "Domains",
        f"Registrable domains by tokens, the largest first. `{DOMAINS_FILE}` lists the largest tenth.",
        ("domain", "pages", "tokens", "share of tokens"),
        rows,
    )


def domains_of(corpus: Origin) -> list[dict[str, Any]]:
    """Return pages, tokens and bytes of each registrable domain of a corpus, most tokens first.

    The list of public suffixes is the one in `tldextract`; nothing is fetched. A host without one counts as itself.
    """
    import pyarrow.parquet as pq
    import tldextract

    extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)
    sums: dict[str, list[int]] = {}
    for row in pq.read_table(corpus.folder / HOSTS_FILE).to_pylist():
        name = extract(row["host"]).top_domain_under_public_suffix or row["host"] or "(no address)"
        own = sums.setdefault(name, [0] * len(_COUNTED))
        for place, counted in enumerate(_COUNTED):
            own[place] += row[counted]
    ordered = sorted(sums.items(), key=lambda one: (-one[1][1], one[0]))
    return [{"domain": name, **dict(zip(_COUNTED, numbers, strict=True))} for name, numbers in ordered]


def largest(domains: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the first tenth of the domains, rounded up."""
    return domains[: -(-len(domains) // LARGEST_SHARE)]


def domains_page(records: Sequence[Record]) -> str:
    """Return the largest tenth of the domains as lines of domain, pages, tokens and bytes, between tabs."""
    corpus = _last(records, "corpus_summary")
    rows = largest(domains_of(corpus)) if corpus else []
    return "".join(
        "\t".join(map(str, line)) + "\n" for line in (("domain", *_COUNTED), *(one.values() for one in rows))
    )


def _languages(records: Sequence[Record]) -> CardTable | None:
    return _counted(
        records, "language", "Languages", "Pages by the language that was recognized.", "language", SHOWN_LICENCES
    )


def _licences(records: Sequence[Record]) -> CardTable | None:
    return _counted(
        records,
        "licence",
        "Licences stated",
        "Licences that pages state themselves, the most frequent first. A statement is no legal finding.",
        "licence",
        SHOWN_LICENCES,
    )


def _counted(
    records: Sequence[Record], column: str, title: str, sentence: str, head: str, most: int
) -> CardTable | None:
    """Return a table of the values of a column of the pages, with the pages of each."""
    counts = [(origin, Counter(_values(origin, column))) for origin in _origins(records, PAGES)]
    if not counts:
        return None
    every = total([origin.computed(DOCUMENTS, own.total()) for origin, own in counts])
    summed = sum((own for _, own in counts), Counter[str]())
    rows: list[tuple[Cell, Cell, Cell]] = []
    for name, _ in sorted(summed.items(), key=lambda one: (-one[1], one[0]))[:most]:
        holding = [origin.computed(DOCUMENTS, own[name]) for origin, own in counts]
        rows.append((derived(name, *holding), number := total(holding), share_of(number, every)))
    return CardTable(title, sentence, (head, "pages", "share of pages"), rows)


def _values(origin: Origin, column: str) -> Counter[str]:
    """Return how many documents of an artifact have each value of a column."""
    found: Counter[str] = Counter()
    for chunk in _columns(origin, column):
        for one in chunk.value_counts().to_pylist():
            found[one["values"] or NONE_STATED] += one["counts"]
    return found


def _columns(origin: Origin, column: str) -> Iterator[Any]:
    """Yield a column of each file of an artifact's documents."""
    import pyarrow.parquet as pq

    for entry in origin.record["files"]:
        if entry["path"].startswith(f"{DOCUMENTS}/") and entry["path"].endswith(".parquet"):
            yield pq.read_table(origin.folder / entry["path"], columns=[column])[column].combine_chunks()


# Data processing


def _filters(records: Sequence[Record]) -> CardTable:
    rows: list[tuple[Cell, Cell, Cell]] = []
    for asset in FUNNEL:
        origins = _origins(records, asset)
        for outcome in ("dropped", "quarantined"):
            reasons = {reason for origin in origins for reason in origin.record["counts"][outcome]}
            for reason in sorted(reasons):
                holding = [one for one in origins if reason in one.record["counts"][outcome]]
                numbers = [one.value_at("counts", outcome, reason) for one in holding]
                left_out = derived(f"{outcome}: {reason}", *numbers)
                rows.append((asset, left_out, total(numbers)))
    return CardTable(
        "What was left out, and why",
        "Records of all snapshots by the stage and rule that left them out.",
        ("stage", "reason", "records"),
        rows,
    )


def _opt_outs(records: Sequence[Record]) -> CardTable:
    rows: list[tuple[Cell, Cell]] = []
    origins = _origins(records, "extracted_documents")
    for origin in origins[-1:]:
        asked = ("refused_robots", "refuse_reserved", "licences")
        rows += [(f"extract.{name}", origin.value_at("settings", "extract", name, of=_setting)) for name in asked]
    for reason in OPT_OUTS if origins else ():
        numbers = [one.value_at("counts", "dropped", of=partial(_of_reason, reason=reason)) for one in origins]
        rows.append((f"pages left out: {reason}", total(numbers)))
    for column, said in TERMS.items():
        stated = [
            origin.computed(DOCUMENTS, values.total() - values[NONE_STATED])
            for origin in _origins(records, PAGES)
            if (values := _values(origin, column)) is not None
        ]
        if stated:
            rows.append((f"{said}, and are trained on", total(stated)))
    return CardTable(
        "Reservations and opt-outs",
        "Which reservations the recipe honours, the pages left out for them, and the pages with a statement that stay.",
        ("what", "value"),
        rows,
    )


def _of_reason(dropped: Mapping[str, int], *, reason: str) -> int:
    return sum(number for name, number in dropped.items() if name.partition(":")[0] == reason)


def _setting(value: Any) -> str:
    return ", ".join(value) or "none" if isinstance(value, (list, tuple)) else "yes" if value else "no"


def _personal_data(records: Sequence[Record]) -> CardTable:
    prefix = "redacted_"
    origins = _origins(records, "filtered_documents")
    kinds = {name for one in origins for name in one.record["metrics"] if name.startswith(prefix)}
    rows: list[tuple[Cell, Cell]] = []
    for kind in sorted(kinds):
        holding = [one.value_at("metrics", kind, of=_whole) for one in origins if kind in one.record["metrics"]]
        rows.append((kind.removeprefix(prefix).replace("_", " "), total(holding)))
    return CardTable(
        "Personal data",
        "Personal data replaced by a placeholder in the pages that were kept, by kind. Names are not replaced.",
        ("kind", "replaced"),
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
        "Post-training",
        "Instructions, preferences and prompts by source, and by who wrote the answers (the generator).",
        ("rows", "source", "generator", "number"),
        rows,
    )


def _writers(origin: Origin, file: str) -> Iterator[tuple[str, str]]:
    with open(origin.folder / file, encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            yield row["source"], row.get("generator", "")


# Cost


def cost_table(records: Sequence[Record]) -> CardTable:
    """Return what was spent on each asset. It differs between runs, so it is written at an export, not on the card."""
    names = {"cpu_seconds": "processor seconds", "node_hours": "node-hours", "price": "price"}
    rows: list[list[Cell]] = []
    for asset in dict.fromkeys(record["asset"] for _, record in records):
        origins = _origins(records, asset)
        spent = [
            [one.value_at("cost", name) for one in origins if one.record["cost"].get(name) is not None]
            for name in names
        ]
        rows.append([asset, *(total(numbers) if numbers else "unknown" for numbers in spent)])
    return CardTable(
        "Cost",
        "What making the artifacts behind the model took. The price is in the unit of the profile.",
        ("asset", *names.values()),
        rows,
    )


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
        "The artifacts behind the model. Where an asset has several, the digest is over theirs in order. The"
        " attestation of an exported model names each of them with its record.",
        ("asset", "artifacts", "digest"),
        rows,
    )


def _digest_over(digests: Sequence[Cited]) -> str:
    values = [str(one.value) for one in digests]
    return values[0] if len(values) == 1 else digest_of(values)


def _json(origin: Origin, name: str) -> Any:
    return json.loads((origin.folder / name).read_text("utf-8"))

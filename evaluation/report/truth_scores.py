"""Scores of a pipeline's outputs against the truth of each page. Pure functions on rows.

Documents and truth rows are matched by WARC file name and offset. Each score counts only the documents that reached the
stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

Row = Mapping[str, object]
Place = tuple[str, int]
Scores = dict[str, float]


def place(row: Row) -> Place:
    """Return WARC file name and offset in bytes, which identify a record in the truth and in every later table."""
    return PurePosixPath(str(row["warc_file"])).name, int(str(row["warc_offset"]))


def by_place(rows: Iterable[Row]) -> dict[Place, Row]:
    """Return the rows by their place (WARC file name and offset)."""
    return {place(row): row for row in rows}


def ratio(part: int, whole: int) -> float:
    """Return part / whole; 1.0 if there was nothing to find, because nothing was missed."""
    return part / whole if whole else 1.0


def dedup_scores(truth: Iterable[Row], kept: Iterable[Row], removed: Iterable[Row]) -> Scores:
    """Return precision and recall, 0 to 1, of removed duplicates.

    In each cluster, the first document that reached the stage should be kept. Documents are ordered by (WARC file,
    offset). A document without truth is left out.
    """
    known = by_place(truth)
    gone = {place(row) for row in removed if place(row) in known}
    arrived = gone | {place(row) for row in kept if place(row) in known}
    clusters: defaultdict[object, list[Place]] = defaultdict(list)
    for one in sorted(arrived):
        clusters[known[one]["duplicate_of"] or known[one]["url"], known[one]["kind"] == "sheet"].append(one)
    expected = {one for members in clusters.values() for one in members[1:]}
    return {
        "precision": ratio(len(gone & expected), len(gone)),
        "recall": ratio(len(gone & expected), len(expected)),
        "removed": len(gone),
        "duplicates": len(expected),
    }


def filter_scores(truth: Iterable[Row], kept: Iterable[Row], dropped: Iterable[Row]) -> Scores:
    """Return precision and recall of dropped documents; `dropped/<kind>` is the share of that kind that was dropped."""
    known = by_place(truth)
    gone = {place(row) for row in dropped if place(row) in known}
    arrived = gone | {place(row) for row in kept if place(row) in known}
    unwanted = {one for one in arrived if known[one]["fate"] == "filtered"}
    seen = Counter(str(known[one]["kind"]) for one in arrived)
    out = Counter(str(known[one]["kind"]) for one in gone)
    return {
        "precision": ratio(len(gone & unwanted), len(gone)),
        "recall": ratio(len(gone & unwanted), len(unwanted)),
        **{f"dropped/{kind}": out[kind] / seen[kind] for kind in sorted(seen)},
    }


def personal_scores(truth: Iterable[Row], kept: Iterable[Row]) -> Scores:
    """Return precision and recall of redaction, from the personal data and look-alikes planted in kept documents.

    A planted string counts as redacted if the text no longer has it. `recall/<type>` is the share redacted of each type
    of personal data, and `spared/<type>` the share not redacted of each type of look-alike.
    """
    known = by_place(truth)
    planted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for row in kept:
        facts = known.get(place(row))
        if facts is None:
            continue
        for group, field in (("personal", "personal"), ("decoy", "decoys")):
            for kind, values in facts[field].items():  # pyrefly: ignore[missing-attribute]  # facts are of JSON
                for value in values:
                    planted[f"{group}/{kind}"] += 1
                    found[f"{group}/{kind}"] += value not in str(row["text"])
    hit = sum(count for name, count in found.items() if name.startswith("personal/"))
    false = sum(count for name, count in found.items() if name.startswith("decoy/"))
    total = sum(count for name, count in planted.items() if name.startswith("personal/"))
    scores = {"precision": ratio(hit, hit + false), "recall": ratio(hit, total)}
    for name, count in sorted(planted.items()):
        group, _, kind = name.partition("/")
        gone = found[name] / count
        scores |= {f"recall/{kind}": gone} if group == "personal" else {f"spared/{kind}": 1 - gone}
    return scores


def contamination_scores(truth: Iterable[Row], kept: Iterable[Row], removed: Iterable[Row]) -> Scores:
    """Return precision and recall of pages removed because they hold items of the exam."""
    known = by_place(truth)
    gone = {place(row) for row in removed if place(row) in known}
    arrived = gone | {place(row) for row in kept if place(row) in known}
    leaks = {one for one in arrived if known[one]["items"]}
    return {
        "precision": ratio(len(gone & leaks), len(gone)),
        "recall": ratio(len(gone & leaks), len(leaks)),
        "leaks": len(leaks),
    }


def extraction_scores(truth: Iterable[Row], extracted: Iterable[Row]) -> Scores:
    """Return mean word precision and recall of extracted against true main texts, over pages of any encoding."""
    known = by_place(truth)
    precision, recall, pages = 0.0, 0.0, 0
    for row in extracted:
        facts = known.get(place(row))
        if facts is None or facts["fate"] in ("skipped", "quarantined") or not facts["text"]:
            continue
        # The title may be in the text or not: extractors differ, and both are right.
        wanted, title = Counter(str(facts["text"]).split()), Counter(str(facts["title"]).split())
        got = Counter(str(row["text"]).split())
        precision += ratio((got & (wanted + title)).total(), got.total())
        recall += ratio((got & wanted).total(), wanted.total())
        pages += 1
    return {"precision": precision / max(1, pages), "recall": recall / max(1, pages), "pages": pages}

"""Stage `contamination`: whether the training data hold items of the exams by which the models will be scored.

The data are scanned when they are ready, before anything is trained on them. With `evaluation.contamination: before`
the gate `contamination` refuses every training; with `after` this stage has no gate; the gate is then in the report
made after scoring (evaluation.contamination.report).

Training data are pages, instructions, preferences and prompts, and those of a teacher that was made under this root. A
page that a model wrote is read behind the prompt that it answers. The rule is that of training.data.exams.search, by
which documents are also removed. `contamination.json` has the verdict and, for each suite, the items found in each kind
of training data, the questions that were seen without their answers, and the items that cannot be cleared.
`findings.jsonl` has a row for each finding: benchmark, item, document or row, URL, WARC file and offset, and the
matched text. Each rank reads one document file, one artifact of instructions, preferences or prompts, or the system
prompt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.contamination.verdict import (
    CONTAMINATED,
    FINDINGS_FILE,
    INSTRUCTIONS,
    PREFERENCES,
    PRETRAINING,
    PROMPTS,
    REPORT_FILE,
    UNKNOWN,
    WHERE,
    cleared,
    gate_of,
    judged,
    metrics_of,
)
from evaluation.exams.items import read_exam
from training.contract.artifact import SCRATCH_FOLDER, canonical_json, write_json, written
from training.contract.job import InputArtifact, Job, Outcome, Share, Work
from training.contract.records import read_record
from training.data.documents import document_files, read_documents, read_lines, write_lines
from training.data.exams.benchmarks import BenchmarkItem, Plants, item_text, not_cleared, read_items
from training.data.exams.search import item_rule
from training.data.exams.search.item_rule import Finder, FoundItem, build_items
from training.data.exams.search.row_search import searched, searched_columns, with_prompt
from training.data.exams.settings import BenchmarkRecipe
from training.posttrain.preferences.pairs import is_pair
from training.posttrain.rows.forms import prompt_text
from training.posttrain.rows.messages import spoken
from training.posttrain.rows.sorting import INSTRUCTIONS_FILE, PROMPTS_FILE, TRAIN_FILE
from training.recipe.settings.evaluation import CANNOT_BE_KNOWN, EvaluationRecipe, TrainedOn

DOCUMENTS = "decontaminated_documents"
QUESTION_SEEN = "question_seen"
TOTALS = {"findings": "num_findings", "scanned_texts": "texts"}  # metrics that are sums over the ranks
DOCUMENT_COLUMNS = ("id", "text", "url", "snapshot", "warc_file", "warc_offset")
KEPT_FINDINGS_PER_ITEM = 20  # by each rank; all findings are counted
FIELDS = (
    *("benchmark", "item", "where"),
    *("document", "url", "snapshot", "warc_file", "warc_offset", "row", "source", "generator", "side"),
    *("how", "part", "share", "span", "text", "before", "after"),
)
CONTEXT_CHARACTERS = 160  # kept on each side of the matched text
SHOWN_CHARACTERS = 400
NOTHING_TRAINED = "nothing is trained on these data"
OR_AFTER = "or train nevertheless and be refused at the promotion (evaluation.contamination: after)"
WAYS_OUT = {
    CONTAMINATED: f"{NOTHING_TRAINED}; take the items out (decontaminate.action: remove), {OR_AFTER}",
    UNKNOWN: (
        f"{NOTHING_TRAINED}; name exams in evaluation.suites with questions of eight words or more and names of their"
        " own, allow what cannot be known by its name"
        f" (evaluation.tolerate_unknown: {', '.join(CANNOT_BE_KNOWN)}), {OR_AFTER}"
    ),
}


# Why the text behind an asset is unknown.
NO_SCAN = "{}: a model is trained on its text, and it has no scan"
UNSCANNED = {"adopted_model": "{}: what it was trained on before it was adopted is not known"}

Text = tuple[dict[str, Any], str]
"""The source of a text, as columns of a finding, and the text."""


def num_ranks(job: Job) -> int:
    """Return the number of ranks: one for each part of the training data."""
    return len(_parts(job))


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: one document file or one file of rows.

    The last rank reads no file, because it scans the system prompt.
    """
    named = [(item, name) for item in _inputs(job, DOCUMENTS) for name in document_files(item).names]
    named += [(item, file) for asset, _, file, _ in _ROWS for item in _inputs(job, asset)]
    return [*(Share(files=((item, name),)) for item, name in named), Share(files=())]


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Return the findings in one part of the training data, with the name of the asset that it belongs to.

    The ids of a file of documents are kept in a scratch file, for `finish`.
    """
    asset, where, texts = _parts(job)[rank]
    found = {"asset": asset, **scan(texts(), where, _exams(canonical_json(job.settings)))}
    if rank >= sum(map(len, _document_files(job))):
        return found
    name = f"{SCRATCH_FOLDER}/ids-{rank:05d}.parquet"
    with written(work.path / name) as stream:
        pq.write_table(pa.table({"id": _ids(_document_file(job, rank))}), stream)
    return {**found, "files": [name]}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Write the report with the verdict, and the list of findings; with `contamination: before`, return the gate."""
    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    # A rank's result has its fields in the order of the alphabet.
    findings = [{name: one[name] for name in sorted(one, key=FIELDS.index)} for one in findings_of(ranks)]
    exams = _exams(canonical_json(job.settings))
    suites = suite_reports(exams, ranks, recipe)
    report: dict[str, Any] = {
        "rule": rule(),
        "scanned": _scanned(job, ranks),
        "max_contaminated_fraction": recipe.max_contaminated_fraction,
        "question_seen": recipe.question_seen,
        "suites": suites,
        "unscanned_documents": _unscanned(job, work, ranks),
        "unknown": _unknown(job, ranks) | uncleared(suites),
    }
    report |= judged(report, recipe)
    write_json(work.path / REPORT_FILE, report)
    write_lines(work.path / FINDINGS_FILE, findings)
    numbers = {name: float(sum(rank[of] for rank in ranks)) for name, of in TOTALS.items()}
    gate = gate_of(report, findings)
    gate = gate if gate.passed else replace(gate, evidence=gate.evidence | {"way_out": WAYS_OUT[report["verdict"]]})
    return Outcome(
        files=(REPORT_FILE, FINDINGS_FILE),
        metrics=metrics_of(report) | numbers,
        gates=(gate,) if recipe.contamination == "before" else (),
    )


# What is read.


Part = tuple[str, str, Callable[[], Iterable[Text]]]
"""A part of the training data: the asset that it belongs to, its kind, and a reader.

The asset is empty for a setting and for data of the teacher, because it says which of the model's own data are scanned.
"""


def _parts(job: Job) -> list[Part]:
    own = len(job.inputs_of(DOCUMENTS))
    parts: list[Part] = [
        (DOCUMENTS if number < own else "", PRETRAINING, partial(_documents, files, place))
        for number, files in enumerate(_document_files(job))
        for place in range(len(files))
    ]
    for asset, where, _, read in _ROWS:
        own = len(job.inputs_of(asset))
        parts += [
            (asset if number < own else "", where, partial(read, item))
            for number, item in enumerate(_inputs(job, asset))
        ]
    return [*parts, ("", PROMPTS, partial(_system_prompt, job))]


def _inputs(job: Job, asset: str) -> list[InputArtifact]:
    """Return the artifacts of an asset that are scanned: the inputs of the job, then the teacher's other data."""
    own = list(job.inputs_of(asset))
    digests = {item.digest for item in own}
    return own + [item for item in _teacher_data(job) if item.asset == asset and item.digest not in digests]


def _teacher_data(job: Job) -> list[InputArtifact]:
    return [read_record(InputArtifact, item, where="teacher_data") for item in job.settings.get("teacher_data", ())]


def _document_files(job: Job) -> list[Sequence[Path]]:
    """Return the document files of each artifact; a file's checksum is verified when its path is taken."""
    return [document_files(item) for item in _inputs(job, DOCUMENTS)]


def _document_file(job: Job, rank: int) -> Path:
    places = [(files, place) for files in _document_files(job) for place in range(len(files))]
    files, place = places[rank]
    return files[place]


def _documents(files: Sequence[Path], place: int) -> Iterator[tuple[dict[str, Any], str]]:
    path = files[place]
    for row in read_documents(path, searched_columns(path, DOCUMENT_COLUMNS)):
        yield (
            {"document": row["id"], **{name: row[name] for name in ("url", "snapshot", "warc_file", "warc_offset")}},
            with_prompt(row),
        )


def _instructions(item: InputArtifact) -> Iterator[tuple[dict[str, Any], str]]:
    for row in read_lines(item.file(INSTRUCTIONS_FILE)):
        yield _row_source(row), spoken(row["messages"])


def _preferences(item: InputArtifact) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield both answers of each training pair, or a row's single answer, after its prompt: all are trained on.

    Held-out pairs are not read, because they are not trained on.
    """
    for row in read_lines(item.file(TRAIN_FILE)):
        for side in ("chosen", "rejected") if is_pair(row) else ("completion",):
            yield _row_source(row) | {"side": side}, spoken([*row["prompt"], *row[side]])


def _trained_on(job: Job) -> TrainedOn:
    return job.settings_as(TrainedOn, "trained_on") if "trained_on" in job.settings else TrainedOn()


def _prompts(item: InputArtifact) -> Iterator[Text]:
    """Yield each prompt for reinforcement learning with the answer that is rewarded and the wrong ones."""
    for row in read_lines(item.file(PROMPTS_FILE)):
        yield _row_source(row), prompt_text(row)


_ROWS = (
    ("instruction_data", INSTRUCTIONS, INSTRUCTIONS_FILE, _instructions),
    ("preference_data", PREFERENCES, TRAIN_FILE, _preferences),
    ("prompt_data", PROMPTS, PROMPTS_FILE, _prompts),
)


def _system_prompt(job: Job) -> Iterator[Text]:
    trained_on = _trained_on(job)
    if trained_on.system_prompt:
        yield {"row": "system prompt", "source": "sft.system_prompt"}, trained_on.system_prompt
    for prompt in trained_on.teacher_prompts:
        yield {"row": "system prompt of the teacher", "source": "sft.system_prompt"}, prompt


def _row_source(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"row": row["id"], "source": row.get("source", ""), "generator": row.get("generator", "")}


@dataclass(frozen=True, kw_only=True)
class Exams:
    """The items of all suites by item number, and the finder of them."""

    items: tuple[BenchmarkItem, ...]
    finder: Finder

    @cached_property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The name of the suite and the id within it, of each item of `items`, in their order."""
        return tuple((item.benchmark, item.id) for item in self.items)

    @cached_property
    def not_cleared(self) -> tuple[dict[str, str], ...]:
        """The items that cannot be cleared. All items are planted for it, and only the report asks for it."""
        return tuple(not_cleared(self.finder.index, Plants.of(self.finder, self.items), self.items))


@lru_cache(maxsize=2)
def _exams(settings: str) -> Exams:
    """Return the exams of the settings. They are indexed once per process."""
    plain = json.loads(settings)
    recipe = read_record(EvaluationRecipe, plain["evaluation"], where="evaluation")
    return exams_of_suites(recipe.suites, plain)


def exams_of_suites(suites: Sequence[BenchmarkRecipe], settings: Mapping[str, Any]) -> Exams:
    """Return the exams made of all items of these suites that can be scored."""
    return exams_of([item for benchmark in suites for item in _scored(benchmark, settings)])


def _scored(benchmark: BenchmarkRecipe, settings: Mapping[str, Any]) -> Iterator[BenchmarkItem]:
    """Yield the items of a suite that can be scored."""
    scored = {item.id for item in read_exam(benchmark, settings).items}
    return (item for item in read_items(benchmark, settings) if item.id in scored)


def exams_of(items: Sequence[BenchmarkItem]) -> Exams:
    """Build the search index over these items and return them as exams."""
    return Exams(items=tuple(items), finder=Finder(build_items([item_text(item) for item in items])))


# What is found.


def scan(texts: Iterable[Text], where: str, exams: Exams) -> dict[str, Any]:
    """Find items in the texts.

    All findings are counted. The first KEPT_FINDINGS_PER_ITEM of each item are kept, with source and span.
    """
    findings: list[dict[str, Any]] = []
    counts: Counter[int] = Counter()
    kinds: dict[str, set[int]] = {"item": set(), "question": set()}
    num_texts = 0
    for source, held in searched(((source, (text,)) for source, text in texts), exams.finder):
        num_texts += 1
        for text, found in held:
            counts[found.item] += 1
            kinds[found.kind].add(found.item)
            if counts[found.item] <= KEPT_FINDINGS_PER_ITEM:
                benchmark, item = exams.names[found.item]
                finding = {"benchmark": benchmark, "item": item, "where": where, **source}
                findings.append(finding | _found(found, text))
    return {
        "where": where,
        "texts": num_texts,
        "num_findings": counts.total(),
        "found": sorted(kinds["item"]),
        "questions_seen": sorted(kinds["question"]),
        "findings": findings,
    }


def _found(found: FoundItem, text: str) -> dict[str, Any]:
    return {
        "how": found.kind if found.kind == "item" else QUESTION_SEEN,
        "part": found.part,
        "share": found.share,
        "span": [found.start, found.end],
        "text": text[found.start : found.end][:SHOWN_CHARACTERS],
        "before": text[max(0, found.start - CONTEXT_CHARACTERS) : found.start],
        "after": text[found.end : found.end + CONTEXT_CHARACTERS],
    }


def findings_of(ranks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the benchmark items found by all ranks, with their places, in the order of `findings.jsonl`."""
    return sorted((finding for rank in ranks for finding in rank["findings"]), key=_finding_order)


def _finding_order(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    source = finding.get("document") or finding.get("row") or ""
    return finding["benchmark"], finding["item"], WHERE.index(finding["where"]), source, finding.get("side", "")


def suite_reports(
    exams: Exams, ranks: Sequence[Mapping[str, Any]], recipe: EvaluationRecipe
) -> dict[str, dict[str, Any]]:
    """Return, as plain data, which items of each suite of the recipe were found in the training data."""
    return {suite.name: _suite_report(suite.name, exams, ranks, recipe) for suite in recipe.suites}


def _suite_report(
    name: str, exams: Exams, ranks: Sequence[Mapping[str, Any]], recipe: EvaluationRecipe
) -> dict[str, Any]:
    """Return which items of one suite were found.

    With `question_seen: contaminated`, an item whose question was seen without its answer counts as found.
    """

    def of_suite(kind: str, where: str) -> set[str]:
        numbers = {number for rank in ranks if rank["where"] == where for number in rank[kind]}
        return {item for suite, item in (exams.names[number] for number in numbers) if suite == name}

    questions = {where: of_suite("questions_seen", where) for where in WHERE}
    found = {where: of_suite("found", where) for where in WHERE}
    if recipe.question_seen == CONTAMINATED:
        found = {where: found[where] | questions[where] for where in WHERE}
    items = sum(suite == name for suite, _ in exams.names)
    every = set().union(*found.values())
    not_cleared = [item["item"] for item in exams.not_cleared if item["benchmark"] == name]
    return {
        "items": items,
        "not_cleared": [item for item in not_cleared if item not in every],
        "found_items": len(every),
        "found_fraction": len(every) / items,
        "found": {where: sorted(some) for where, some in found.items()},
        "questions_seen": sorted(set().union(*questions.values())),
    }


# Was all training data scanned?


def _scanned(job: Job, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts = Counter(dict.fromkeys(WHERE, 0))
    for rank in ranks:
        texts[rank["where"]] += rank["texts"]
    digests = {f"{item.asset} [{item.partition}]": item.digest for item in job.inputs}
    digests |= {f"teacher: {item.asset} [{item.partition}]": item.digest for item in _teacher_data(job)}
    return {"texts": dict(texts), "digests": digests}


def _unscanned(job: Job, work: Work, ranks: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of documents in the token shards that were not scanned.

    It must be 0; otherwise the report is about another corpus than the one trained on.
    """
    read = {id_ for rank in ranks for name in rank.get("files", ()) for id_ in _ids(work.path / name)}
    return sum(
        id_ not in read for item in job.inputs_of("token_shards") for path in _sidecars(item) for id_ in _ids(path)
    )


def _sidecars(item: InputArtifact) -> list[Path]:
    return [item.file(name) for name in item.files() if name.endswith(".documents.parquet")]


def _ids(path: Path) -> list[str]:
    return pq.read_table(path, columns=["id"], memory_map=True).column("id").to_pylist()


def _unknown(job: Job, ranks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return {name: reason} for training data that were not scanned.

    The reason is that an asset has no scan, or that some of a teacher's training data are unknown.
    """
    trained_on, scanned = _trained_on(job), {rank["asset"] for rank in ranks}
    unknown = {name: UNSCANNED.get(name, NO_SCAN).format(name) for name in trained_on.data if name not in scanned}
    if trained_on.teacher_unknown:
        behind = ", ".join(trained_on.teacher_unknown)
        unknown["teacher"] = f"{trained_on.teacher}: what this model was trained on is not known here ({behind})"
    return unknown


def uncleared(suites: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return {"exams": reason} if a report on suites clears no item of one of them, or has no suite; else {}.

    Nobody knows then whether the items of the suite were trained on. A suite of which all items were found is known.
    """
    if not suites:
        return {"exams": "evaluation.suites names no exam, so no item could be looked for"}
    none = [
        f"{name} (0 of {suite['items']})"
        for name, suite in suites.items()
        if not cleared(suite) and suite["found_items"] < suite["items"]
    ]
    if not none:
        return {}
    why = "each is too short, not its own, or not found where it is planted"
    return {"exams": f"no item of {', '.join(none)} can be cleared: {why}"}


def rule() -> dict[str, Any]:
    """Return a description of how benchmark items are found, with the thresholds, for the contamination report."""
    return {
        "finding": "at least this share of the words of an item, weighted by how rare they are, in their order",
        "min_share": item_rule.MIN_SHARE,
        "answer_reach_words": item_rule.ANSWER_REACH,
    }

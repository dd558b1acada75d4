"""Stage `score_quantized`: the exams and the held-out text for the model in small numbers, and what it lost.

The files are those of the stage `evaluate` (evaluation/exams/scores.py) for one model, which is called `quantized`, and
`loss.json`: for each suite the paired drop from the model that was quantized, on the items that both were asked. How
fast both models write is measured, one after the other, and decides nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.decision.answers import BITS_FILES, CORPUS, HELD_OUT, MODEL_FOLDER, OUTSIDE, name_of
from evaluation.decision.paired import Answers, paired, read_answers
from evaluation.exams.scores import Candidate, Exams, check_names, completeness, metrics_of, sit, write_scores
from training.contract.artifact import write_json
from training.contract.identity import numerics
from training.contract.job import Gate, Job, Outcome, Work
from training.contract.scopes import CHOSEN_MODEL, QUANTIZED, QUANTIZED_MODEL
from training.order.settings import MixtureRecipe
from training.recipe.settings.evaluation import EvaluationRecipe

PARENTS = ("base_model", "sft_model", "aligned_model", CHOSEN_MODEL)
LOSS_FILE = "loss.json"
ROWS, NEW_TOKENS = 8, 32  # of the answers whose speed is measured
WAY_OUT = (
    "an exam with more items narrows the interval; int8 rounds less than int4, and small groups less than large ones;"
    " quantize.max_drop says how much may be lost"
)


def run(job: Job, work: Work) -> Outcome:
    """Score the quantized model, compare it with its parent item by item, and write the files listed above."""
    import training.generate.model_folder  # noqa: F401 - what is imported after it is offline and quiet
    from evaluation.exams.tasks import asked_exam
    from evaluation.exams.unseen_text import held_out_texts, read_texts
    from training.generate.checked_folder import admit_torchao

    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    check_names(recipe.suites)
    admit_torchao()  # before the numerics are noted: its products are those of the model
    numerics.use_threads(job.run)
    numerics.note(job, work)
    read = {benchmark.name: asked_exam(benchmark, job.settings) for benchmark in recipe.suites}
    exams: Exams = [(benchmark, read[benchmark.name].items) for benchmark in recipe.suites]
    fraction = job.settings_as(MixtureRecipe, "mixture").held_out_fraction
    texts = {
        HELD_OUT: held_out_texts(job.inputs_of(CORPUS), fraction=fraction, limit=recipe.held_out_limit),
        OUTSIDE: read_texts(recipe, job.settings),
    }
    small, parent, before = job.input_of(QUANTIZED_MODEL), job.input_of(*PARENTS), job.input_of("model_scores")
    identity = {"asset": small.asset, "fingerprint": small.fingerprint, "digest": small.digest}
    candidate = sit(QUANTIZED, small.file(MODEL_FOLDER), identity, exams, recipe, job.settings, texts=texts)
    suites = {result.suite: result.as_json() for result in candidate.results}
    files = write_scores(work.path, [candidate], {QUANTIZED: suites})
    lost = losses(read_answers(before.folder, name_of(parent)), read_answers(work.path, QUANTIZED))
    write_json(work.path / LOSS_FILE, lost)
    speeds = {name: tokens_per_second(item.file(MODEL_FOLDER)) for name, item in (("", small), ("parent_", parent))}
    return Outcome(
        files=(*files, LOSS_FILE),
        metrics={
            **metrics_of({QUANTIZED: suites}),
            **_bits(candidate, before.folder, name_of(parent)),
            **{f"{QUANTIZED}_{suite}_drop": one["drop"] for suite, one in lost.items()},
            **{f"{name}tokens_per_second": speed for name, speed in speeds.items()},
        },
        gates=(
            completeness({QUANTIZED: suites}, {name: len(exam.items) for name, exam in read.items()}, [QUANTIZED]),
            drop_gate(lost, job.settings["limit"]["max_drop"], list(suites)),
        ),
        notes={"parent": {"asset": parent.asset, "fingerprint": parent.fingerprint, "digest": parent.digest}},
    )


def losses(before: Mapping[str, Answers], now: Mapping[str, Answers]) -> dict[str, dict[str, Any]]:
    """Return the paired drop of each suite that both models were asked, with `sentence`, in words."""
    drops = {suite: paired(before[suite], now[suite]) for suite in sorted(before.keys() & now.keys())}
    return {suite: {**drop.as_json(), "sentence": drop.sentence} for suite, drop in drops.items() if drop is not None}


def drop_gate(lost: Mapping[str, Mapping[str, Any]], most: float, suites: list[str]) -> Gate:
    """Return the gate that the items show that at most `most` of the score is lost on every suite."""
    problems = [
        f"{suite}: {lost[suite]['sentence']}" if suite in lost else f"{suite}: no item that both models answered"
        for suite in suites
        if suite not in lost or lost[suite]["interval"][1] > most + 1e-9
    ]
    evidence: dict[str, Any] = {"most": most, "suites": {suite: one["interval"] for suite, one in lost.items()}}
    if problems:
        evidence |= {"reason": "; ".join(problems), "way_out": WAY_OUT}
    return Gate(name="max_drop", passed=not problems, evidence=evidence)


def _bits(candidate: Candidate, before: Path, parent: str) -> dict[str, float]:
    """Return bits per byte of the model and of its parent on each text, by the names of metrics."""
    found = {}
    for name, bits in candidate.bits.items():
        found[f"{QUANTIZED}_{name}_bits_per_byte"] = bits["bits_per_byte"]
        if (path := before / BITS_FILES[name]).is_file():
            told = json.loads(path.read_text("utf-8")).get(parent)
            found |= {f"parent_{name}_bits_per_byte": told["bits_per_byte"]} if told else {}
    return found


def tokens_per_second(folder: Path) -> float:
    """Return how many tokens a second the model in a folder writes here, in greedy answers to eight short prompts."""
    from training.generate.sampler import Sampler

    sampler = Sampler(folder, batch_size=ROWS)
    new = min(NEW_TOKENS, sampler.max_length // 2)
    prompts = [[sampler.end_id] * (1 + row % 4) for row in range(ROWS)]
    sampler.answer_tokens(prompts, max_new_tokens=2)  # what is made once is made before
    begun = time.perf_counter()
    written = sum(map(len, sampler.answer_tokens(prompts, max_new_tokens=new)))
    return written / (time.perf_counter() - begun)

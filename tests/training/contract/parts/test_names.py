"""What is no part is refused where a recipe names it, for every kind of part alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.outside import EXAMPLES
from training.contract.records import RecipeError
from training.data.crawl.settings import SnapshotRecipe
from training.data.dedup.settings import DedupRecipe
from training.data.exams.settings import BenchmarkRecipe
from training.data.extract.settings import ExtractRecipe
from training.data.filter.settings import FilterRecipe
from training.posttrain.align.settings import AlignRecipe
from training.pretrain.models.shape import ModelRecipe
from training.pretrain.objectives.settings import ObjectiveRecipe
from training.pretrain.settings import PretrainRecipe
from training.recipe.settings.evaluation import EvaluationRecipe

BATCHES = {"tokens": 4096, "sequence_length": 32, "global_batch_tokens": 256}
SHAPE = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "mlp_width": 48, "max_length": 64}
SNAPSHOT = {"name": "s", "paths": ("a",)}
SUITE = {"name": "own", "kind": "generate", "uri": "a"}

# Where a recipe names the part, one of the examples, one of Pedigree's, and how a section names it.
KINDS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {
    "rules": ("filter.rules[0]", "long_lines:rule", "c4", lambda name, **of: FilterRecipe(rules=(name,), **of)),
    "survivors": ("dedup.survivor", "original:survivor", "first", lambda name, **of: DedupRecipe(survivor=name, **of)),
    "readers": (
        "snapshots.s.source",
        "zipped_pages:reader",
        "warc",
        lambda name, **of: SnapshotRecipe(source=name, **SNAPSHOT, **of),
    ),
    "extractors": (
        "extract.extractor",
        "plain_tags:extractor",
        "blocks",
        lambda name, **of: ExtractRecipe(extractor=name, **of),
    ),
    "optimizers": (
        "pretrain.optimizer",
        "adamax:optimizer",
        "adamw",
        lambda name, **of: PretrainRecipe(optimizer=name, **BATCHES, **of),
    ),
    "losses": (
        "pretrain.loss",
        "focal:loss",
        "cross_entropy",
        lambda name, **of: PretrainRecipe(loss=name, **BATCHES, **of),
    ),
    "objectives": (
        "pretrain.objective.kind",
        "later_half:objective",
        "masked",
        lambda name, **of: ObjectiveRecipe(kind=name, **of),
    ),
    "families": ("model.family", "granite:family", "olmo2", lambda name, **of: ModelRecipe(family=name, **SHAPE, **of)),
    "rewards": (
        "align.rewards",
        "polite:reward",
        "learned",
        lambda name, **of: AlignRecipe(method="grpo", rewards={name: 1.0}, **of),
    ),
    "methods": ("align.method", "anchored:method", "dpo", lambda name, **of: AlignRecipe(method=name, **of)),
    "tasks": ("own.task", "first_word:task", "", lambda name, **of: BenchmarkRecipe(task=name, **SUITE, **of)),
    "harnesses": (
        "own.harness",
        "second_try:harness",
        "",
        lambda name, **of: BenchmarkRecipe(harness=name, **SUITE, **of),
    ),
    "judges": ("evaluation.judge", "brief:judge", "", lambda name, **of: EvaluationRecipe(suites=(), judge=name, **of)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_part_is_refused_where_it_stands(kind, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    where, place, own, section = KINDS[kind]
    parts, mine = f"{where.rpartition('.')[0]}.parts", {"mine": {"from": place}}
    section("mine", parts=mine)
    other = "adamax:optimizer" if kind == "rewards" else "polite:reward"
    cases = {
        f"{where}: '{other}' is a ": ("mine", {"mine": {"from": other}}),
        f"{parts}.mine.no_such: unknown field": ("mine", {"mine": {"from": place, "no_such": 1}}),
        "no module 'nowhere'": ("mine", {"mine": {"from": "nowhere:it"}}),
        f"{parts}.mine: without effect": (own, mine),
        "task='nmie': lm-eval has no task" if kind == "tasks" else f"entry point pedigree.{kind}": ("nmie", {}),
    }
    cases |= {f"{parts}.{own}: '{own}' is a ": (own, {own: {"from": place}})} if own else {}
    cases |= {"a short name": (place, {})} if kind != "tasks" else {}
    for said, (name, given) in cases.items():
        with pytest.raises(RecipeError, match=re.escape(said)):
            section(name, parts=given)


SETTINGS = {
    "from dataclasses import dataclass as d\n@d\nclass Settings:\n    a: int = 0\n": "they must be a frozen dataclass",
    "Settings = dict": "they must be a frozen dataclass",
    "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Settings:\n    a: int\n": "'a' has no default",
    "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Settings:\n"
    "    def __post_init__(self): raise ValueError('too hot')\n": "evaluation.parts.mine: ValueError: too hot",
}


@pytest.mark.parametrize("body", SETTINGS)
def test_settings_that_are_no_record_are_refused_for_every_kind(write, body):
    judge = "from training.recipe.settings.answer_judge import AnswerJudge as J\n"
    module = write(f"{judge}{body}\njudge = J(score=lambda said, settings: 0.0, settings=Settings)\n")
    with pytest.raises(RecipeError, match=re.escape(SETTINGS[body])):
        EvaluationRecipe(suites=(), judge="mine", parts={"mine": {"from": f"{module}:judge"}})

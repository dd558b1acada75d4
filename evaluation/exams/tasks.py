"""Suites as tasks of lm-eval: tasks of lm-eval by name, or tasks of the recipe or a YAML file. Nothing is fetched.

The rows of the suite's file are the task's documents, and the rows of `fewshot_uri` its few-shot examples. Each column
is also available under its name in lower case with `_` for spaces, so that a template can use `Best Answer`. If
lm-eval's task expects other columns, fields of the recipe such as `doc_to_text` replace the task's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from types import ModuleType
from typing import Any

import datasets
import lm_eval.utils
from jinja2 import BaseLoader, StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from evaluation.exams.items import Exam, ExamItem, read_exam
from training.contract.job import DataError
from training.contract.parts.outside import PartFailed
from training.contract.process.cores import available_cores
from training.contract.records import RecipeError
from training.contract.sandbox import code_eval
from training.contract.sandbox.answers import ConfinedScores, scored
from training.contract.sandbox.confined import check_sandbox
from training.contract.sandbox.judged import Found, Given, Verdict, check_tests, judged
from training.contract.user_input.plain_data import MOST_BYTES, yaml_value
from training.data.exams.generation import PASS_AT, WRITTEN, check_generation, check_repeats
from training.data.exams.grading import given
from training.data.exams.grouped.task_groups import members, owners
from training.data.exams.settings import DECIDED_HERE, BenchmarkRecipe
from training.data.exams.task_checks import check_confined, confined_function
from training.data.exams.task_names import file_of
from training.data.sources import open_uri, read_rows
from training.generate.answer_draws import ITEM, answer_draw
from training.generate.spread import shared_out

FEWSHOT_SEED = 1234  # lm-eval's default
TEST, EXAMPLES = "test", "fewshot"
PASS_AT_SHOWN = (1, 10, 100)  # as in code_eval; beside them the one that a suite's metric names
SOLUTIONS = ("{}", "\n{}\n```", "```python\n{}\n```")  # a program as an answer; tasks differ in the form they read


class Templates(SandboxedEnvironment):
    """An environment that compiles each template once. lm-eval compiles one for each item, which takes milliseconds."""

    @cached_property
    def _compiled(self) -> Callable[[str], Template]:
        return lru_cache(maxsize=1024)(super().from_string)

    def from_string(self, source: Any, *more: Any, **named: Any) -> Template:
        """Return the template of a text."""
        return super().from_string(source, *more, **named) if more or named else self._compiled(source)


def sandboxed() -> SandboxedEnvironment:
    """Return lm-eval's environment of templates, in which no template reaches Python's internals."""
    environment = Templates(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= lm_eval.utils.env.filters
    return environment


# lm-eval renders all templates with this one, and a recipe may bring templates of its own.
lm_eval.utils.env = sandboxed()
# lm-eval's tasks load this metric when their functions are read, and keep it.
CODE_EVAL = code_eval.CodeEval()


@contextmanager
def programs_confined() -> Iterator[None]:
    """Context manager in which `import evaluate` gives the sandbox's metric, and nothing else of the library.

    The library would load its own metric from a hub, and takes seconds to import.
    """
    stand_in = ModuleType("evaluate")
    stand_in.__dict__["load"] = {code_eval.NAME: CODE_EVAL}.__getitem__
    before = sys.modules.get("evaluate")
    sys.modules["evaluate"] = stand_in
    try:
        yield
    finally:
        del sys.modules["evaluate"]
        if before is not None:
            sys.modules["evaluate"] = before


class LmEvalTask(ConfigurableTask):
    """A task of lm-eval whose documents are in memory."""

    UNSAFE_CODE = False  # lm-eval sets it only on tasks that run code
    pass_at: tuple[int, ...] = ()  # the k of pass@k, of a task that runs several programs for each item

    def __init__(
        self, config: dict[str, Any], splits: Mapping[str, Sequence[Mapping[str, Any]]], items: Sequence[str] = ()
    ) -> None:
        self._splits, self._items = splits, items
        self.verdicts: dict[
            tuple[int | None, str], list[Verdict]
        ] = {}  # on the programs of an item, by item and filter
        super().__init__(config=config)
        self.set_fewshot_seed(FEWSHOT_SEED)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """Set the dataset from memory; nothing is downloaded."""
        self.dataset = datasets.DatasetDict(
            **{name: datasets.Dataset.from_list([dict(row) for row in rows]) for name, rows in self._splits.items()}
        )

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **kwargs: Any) -> Any:
        """Return what is asked about one item. A request for sampled answers names its item, for their seeds."""
        made = super().construct_requests(doc, ctx, **kwargs)
        if isinstance(made, Instance) and self.OUTPUT_TYPE == WRITTEN:
            asked: Any = made.args[-1]
            assert made.doc_id is not None, "lm-eval numbers what it asks"
            asked |= {ITEM: self._items[made.doc_id]} if answer_draw(asked).temperature else {}
        return made

    def apply_filters(self) -> list[Instance] | None:
        """Filter written answers for grading, each as it is after its thought; the answers are kept whole."""
        if self.OUTPUT_TYPE != WRITTEN:
            return super().apply_filters()
        requests = self._instances or []
        whole = [request.resps for request in requests]
        for request in requests:
            request.resps = list(map(given, request.resps))
        filtered = super().apply_filters()
        for request, said in zip(requests, whole, strict=True):
            request.resps = said
        if self.UNSAFE_CODE:
            programs = {
                (number, name): [
                    CODE_EVAL.program(code, str(self.doc_to_target(request.doc)), _shown(request.doc))
                    for code in ([codes] if isinstance(codes, str) else codes)
                ]
                for number, request in enumerate(requests)
                for name, codes in request.filtered_resps.items()
            }
            CODE_EVAL.judge_ahead((one for some in programs.values() for one in some), partial(_shared, judged))
            self.verdicts = {
                (requests[number].doc_id, name): [CODE_EVAL.known[one] for one in some]
                for (number, name), some in programs.items()
            }
        scores = self.config.process_results
        if isinstance(scores, ConfinedScores):
            answers = ((one.doc, [said]) for one in requests for said in one.filtered_resps.values())
            scores.ahead(answers, partial(_shared, partial(scored, scores.function, scores.metrics)))
        return filtered

    def fallbacks(self, name: str) -> list[Any]:
        """Return what the filters of that name give where they find nothing in an answer."""
        made = [one() for ensemble in self._filters if ensemble.name == name for one in ensemble.filters]
        return [one.fallback for one in made if hasattr(one, "fallback")]

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """Return the metrics of one item. A program is judged by what was shown of it.

        Of several programs there is also pass@k, for each k of `pass_at` that there are as many of.
        """
        CODE_EVAL.given = _shown(doc)
        values = super().process_results(doc, results)
        if self.UNSAFE_CODE and self.pass_at:
            shares, _ = CODE_EVAL.compute(
                references=[str(self.doc_to_target(doc))], predictions=results, k=self.pass_at
            )
            values = {**values, **shares}
            self._aggregation_list |= {name: mean for name in shares if name not in self._aggregation_list}
            self._higher_is_better |= dict.fromkeys(shares, True)
        return values


def _shared(work: Callable[..., list[Found]], given: list[Given]) -> list[Found]:
    """Return what `work` finds for the given, which the processes of a job share out, and those of a node its cores."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    at_once = max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    shares = [given[number::processes] for number in range(processes)]
    places = [range(number, len(given), processes) for number in range(processes)]
    found = dict[int, Found]()
    for (_, some), share in zip(shared_out(shares, partial(work, at_once=at_once), model=None), places, strict=True):
        found |= zip(share, some, strict=True)
    return [found[place] for place in range(len(given))]


def _shown(document: Mapping[str, Any]) -> str:
    prompt = document.get("prompt")
    return prompt if isinstance(prompt, str) else ""


def make_task(
    benchmark: BenchmarkRecipe, items: Sequence[ExamItem], settings: Mapping[str, Any], *, of_group: str | None = None
) -> LmEvalTask:
    """Return the suite as a task of lm-eval; with `of_group`, as one of the tasks of this group.

    Raise RecipeError if lm-eval does not know the task, if the suite's fields do not define a task, or if the prompt
    needs examples and the recipe names no rows to draw them from; and DataError if programs cannot be judged here.
    """
    check_confined(benchmark)
    config = task_config(benchmark)
    if "class" in config:
        return _python_task(config["class"], benchmark, items)
    function = confined_function(benchmark)
    confined = ConfinedScores(function, benchmark.question_field) if function else None
    if confined is not None:
        config["process_results"] = confined
    shots = config.get("num_fewshot") or 0
    examples = benchmark.fewshot_uri
    own = config.get("fewshot_config") or {}
    if shots and not (examples or own.get("samples")):
        raise RecipeError(
            f"{benchmark.name}: the task has {shots} examples in its prompt; name rows in fewshot_uri, or set"
            " num_fewshot to 0"
        )
    splits = {TEST: [_document(item.row) for item in items]}
    if shots and examples:
        rows = list(read_rows(examples, settings=settings))
        of = owners(replace(benchmark, task=of_group, uri=examples), rows) if of_group else [benchmark.task] * len(rows)
        splits[EXAMPLES] = [_document(row) for row, task in zip(rows, of, strict=True) if task == benchmark.task]
    config |= {"task": benchmark.name, "test_split": TEST, "training_split": None, "validation_split": None}
    several = (config.get("repeats") or 1) if config.get("unsafe_code") else 1
    if several > 1 and not config.get("filter_list"):  # lm-eval would take the first program alone
        config["filter_list"] = [{"name": "none", "filter": [{"function": "take_first_k", "k": several}]}]
    config |= {"fewshot_split": EXAMPLES if EXAMPLES in splits else None, "dataset_path": None, "dataset_name": None}
    if own:  # rows of the recipe come before the examples that the task has, and a split would come before both
        left_out = ("split", "samples") if examples else ("split",)
        config["fewshot_config"] = {key: value for key, value in own.items() if key not in left_out}
    try:
        task = LmEvalTask(config, splits, [item.id for item in items])
    except PartFailed:  # of a task from outside, which says its name
        raise
    except (TypeError, ValueError, KeyError, AttributeError, AssertionError, TemplateError) as error:
        raise RecipeError(f"{benchmark.name}: lm-eval cannot make the task: {type(error).__name__}: {error}") from error
    if confined is not None:  # before the model is asked
        check_sandbox(f"{benchmark.name}: a suite whose scoring evaluates answers")
        documents: list[Any] = list(task.test_docs())
        targets = [str(task.doc_to_target(one)) for one in documents]
        confined.of_task(benchmark.name, task._aggregation_list, zip(documents, targets, strict=True))
    if task.UNSAFE_CODE:
        check_tests(str(task.doc_to_target(document)) for document in splits[TEST])
        named = map(int, PASS_AT.findall(benchmark.metric or ""))
        task.pass_at = tuple(k for k in sorted({*PASS_AT_SHOWN, *named}) if k <= several) if several > 1 else ()
    return task


def _python_task(cls: type[ConfigurableTask], benchmark: BenchmarkRecipe, items: Sequence[ExamItem]) -> LmEvalTask:
    """Return a task that is a class of lm-eval's, with the suite's rows in place of its data set."""

    class OnRows(LmEvalTask):
        def __init__(self, config: dict[str, Any]) -> None:
            rows = [_document(item.row) for item in items]
            super().__init__({**config, "task": benchmark.name}, {"validation": rows}, [item.id for item in items])

    made: Any = type(cls.__name__, (cls, OnRows), {})
    return made()


def asked_exam(benchmark: BenchmarkRecipe, settings: Mapping[str, Any]) -> Exam:
    """Return what `read_exam` returns; of a suite of programs without the items whose score would say nothing.

    Those are items whose own answer, given as a model's answer, does not pass its test, and items that an empty answer
    passes. Both are listed with the others that cannot be scored. Raise DataError if no item is left.
    """
    exam = read_exam(benchmark, settings)
    if members(benchmark.task) and benchmark.outside_task() is None:
        named = owners(benchmark, [item.row for item in exam.items])
        return replace(
            exam, items=[replace(one, kind=one.kind or name) for one, name in zip(exam.items, named, strict=True)]
        )
    if not (benchmark.is_task and task_config(benchmark).get("unsafe_code")):
        return exam
    reasons = _told_nothing(make_task(benchmark, exam.items, settings), [item.answers[0] for item in exam.items])
    before = {said["row"] for said in exam.refused}
    rows = [row for row in range(len(exam.items) + len(before)) if row not in before]
    found = [
        {"row": row, "item": item.id, "reason": reasons[place]}
        for place, (row, item) in enumerate(zip(rows, exam.items, strict=True))
        if place in reasons
    ]
    if len(found) == len(exam.items):
        raise DataError(
            f"{benchmark.uri}: benchmark {benchmark.name}: no item can be scored; item {found[0]['item']}:"
            f" {found[0]['reason']}; the field {benchmark.answer_field!r} (answer_field) must hold each item's solution"
        )
    kept = [item for place, item in enumerate(exam.items) if place not in reasons]
    return Exam(items=kept, refused=sorted([*exam.refused, *found], key=lambda said: said["row"]))


def _told_nothing(task: LmEvalTask, solutions: Sequence[str]) -> dict[int, str]:
    """Return {place: reason} for the items of a suite of programs whose score would say nothing about an answer."""
    task.build_all_requests()
    requests = list(task.instances)
    whys = _whys(task, requests, [""] * len(requests))
    reasons = {place: "an empty answer passes its test" for place, why in enumerate(whys) if not why}
    left = {place: "" for place in range(len(requests)) if place not in reasons}
    for form in SOLUTIONS:
        whys = _whys(task, [requests[place] for place in left], [form.format(solutions[place]) for place in left])
        left = {place: left[place] or why for place, why in zip(left, whys, strict=True) if why}
    return reasons | {place: f"its own answer does not pass its test: {why}" for place, why in left.items()}


def _whys(task: LmEvalTask, requests: Sequence[Instance], answers: Sequence[str]) -> list[str]:
    """Return why each answer fails, of a task that judges programs; empty if it passes."""
    if not requests:
        return []
    task._instances = list(requests)
    for request, answer in zip(requests, answers, strict=True):
        request.resps, request.filtered_resps = [answer] * (request.repeats or 1), {}
    task.apply_filters()
    whys = []
    for request in requests:
        values = task.process_results(request.doc, [next(iter(request.filtered_resps.values()))])
        failed = "" if next(iter(values.values())) == 1 else "its score is not 1"
        test = str(task.doc_to_target(request.doc))
        said = (one.why for program, one in CODE_EVAL.known.items() if program.test == test)
        whys.append(failed and next((why for why in said if why), failed))
    return whys


def task_config(benchmark: BenchmarkRecipe) -> dict[str, Any]:
    """Return lm-eval's configuration of a suite: the task's own fields, replaced by those that the recipe sets."""
    config: dict[str, Any] = {}
    if benchmark.outside_task() is not None:
        config = benchmark.outside_fields()
    elif benchmark.task:
        config = named_config(benchmark.task)
    elif benchmark.task_file:
        config = _file_config(benchmark.task_file)
    config |= benchmark.lm_eval
    if benchmark.num_fewshot is not None:
        config["num_fewshot"] = benchmark.num_fewshot
    check_generation(benchmark.name, config)
    check_repeats(benchmark.name, config, metric=benchmark.metric)
    return config


def named_config(name: str) -> dict[str, Any]:
    """Return the configuration of lm-eval's own task of that name, without the fields that only group tasks.

    A task that is code of lm-eval's has its `class`. Raise RecipeError if there is no such task.
    """
    place = file_of(name)
    if place is None:
        raise RecipeError(f"task={name!r}: lm-eval has no task of that name")
    runs_code = load_yaml(place, resolve_func=False).get("unsafe_code")
    with programs_confined() if runs_code else nullcontext():
        config = load_yaml(place)
    if (
        detector := sys.modules.get("langdetect")
    ) is not None:  # of IFEval; without a seed its answers differ each time
        detector.DetectorFactory.seed = 0
    return {key: value for key, value in config.items() if key not in ("tag", "group", "task_list")}


def _file_config(uri: str) -> dict[str, Any]:
    """Return the task in a YAML file. It is read as plain data, so that no file can run code."""
    with open_uri(uri) as stream:
        config = yaml_value(stream.read(MOST_BYTES + 1), uri)
    if not isinstance(config, dict):
        raise RecipeError(f"{uri}: expected the fields of a task")
    return {key: value for key, value in config.items() if key not in DECIDED_HERE - {"num_fewshot"}}


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name.lower().replace(" ", "_"): value for name, value in row.items()} | dict(row)

"""Whether a suite's task can be scored here, asked when the recipe is read: its fields, examples, answers, and code."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from training.contract.records import RecipeError, all_of
from training.contract.sandbox.answers import PACKAGES, STAND_INS, Function
from training.data.exams.generation import PASS_AT, check_generation, check_repeats
from training.data.exams.grouped.task_groups import check_group, python_task, tasks_of
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import _given, _source, check_own_task

NLTK_DATA = re.compile(rb"""nltk\.data\.find\(["']([\w/.-]+)["']\)""")
# What a task in Python would fetch: a metric or a data set of a hub.
FETCHED = re.compile(rb"\b(?:evaluate\.load|hf_hub_download|load_dataset)\b")
SERVICES = frozenset(("requests", "openai"))  # packages by which something elsewhere is asked
VERSIONS = re.compile(rb"""assert version\(["']([\w.-]+)["']\)\.startswith\(["']([\w.]+)["']\)""")
EVALUATORS = frozenset(("eval", "exec", "__import__"))
# sympy makes expressions of texts by Python's eval, and the others by sympy or by an evaluator of their own.
EVALUATING_PACKAGES = frozenset(("sympy", "math_verify", "latex2sympy2", "latex2sympy2_extended", "numexpr", "asteval"))


def check_suite(suite: BenchmarkRecipe) -> None:
    """Raise RecipeError with everything that stands against a suite's task; of a group against the first that it has.

    A group's rows are looked at where they are read.
    """
    check_group(suite)
    tasks = tasks_of(suite)
    if len(tasks) > 1 and any(map(confined_function, tasks)):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r}: the tasks of the group evaluate answers; name one of them"
        )
    for one in tasks:
        _check_single(one)


def _check_single(suite: BenchmarkRecipe) -> None:
    if suite.outside_task() is None and (python := python_task(suite.task)):
        _check_class(suite, python)
        return
    whole = _fields(suite)
    fields = replace(suite, num_fewshot=0) if suite.is_task and _own_examples(suite, whole) else suite
    if whole.get("unsafe_code") and PASS_AT.fullmatch((suite.metric or "").partition(",")[0]):  # of several programs
        fields = replace(fields, metric=None)
    all_of(
        partial(check_own_task, fields),
        partial(_check_no_service, suite, whole),
        partial(check_confined, suite),
        partial(_check_installed, suite, whole),
        partial(check_generation, suite.name, whole),
        partial(_check_repeats, suite, whole),
        partial(_check_examples, suite, whole),
    )


def _check_class(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    """Raise RecipeError for a task that is code of lm-eval's, if it fetches anything or does not follow the suite."""
    sources = (path.read_bytes() for path in _modules(_texts_in(whole)))
    if found := sorted({one.decode() for source in sources for one in FETCHED.findall(source)}):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} is code of lm-eval's that fetches its metric or data ({found[0]});"
            " take another suite"
        )
    if suite.lm_eval or suite.num_fewshot or suite.fewshot_uri:
        raise RecipeError(
            f"{suite.name}: lm_eval, num_fewshot, fewshot_uri have no effect on task={suite.task!r}, which is code of"
            " lm-eval's; leave them out"
        )


def _check_no_service(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    """Raise RecipeError if the function that scores a task's answers sends them to a service elsewhere."""
    if found := sorted(_services(str(whole.get("process_results")))):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} scores answers by a service elsewhere ({found[0]}), and exams are"
            " scored offline; take another suite"
        )


def _services(function: str) -> set[str]:
    """Return the packages of SERVICES that a function of lm-eval's tasks needs, or its module does not do without."""
    names = set[str]()
    for path in _modules([function])[:1]:
        tree = ast.parse(path.read_bytes())
        own = (one for one in tree.body if getattr(one, "name", "") == function.rpartition(".")[2])
        inside = [one for node in own for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom)]
        names |= {*_imported(tree.body), *_imported(inside)}
    return names & SERVICES


def check_confined(suite: BenchmarkRecipe) -> None:
    """Raise RecipeError if a suite's task would run what a model wrote in the process that scores it.

    On a machine without lm-eval nothing is known when the recipe is read, so the job that scores asks again. Programs
    are judged in the sandbox if their task scores by `code_eval`, and answers if `process_results` evaluates them.
    Functions of lm-eval's tasks that see answers are known by their source.
    """
    whole = _fields(suite)
    sources = list(_sources(whole))
    if whole.get("unsafe_code") and not any(b'("code_eval")' in source for source in sources):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} runs code that the model writes outside the sandbox; take another suite"
        )
    confined = confined_function(suite)
    sources = list(_sources(whole | ({"process_results": None} if confined else {})))
    if by := sorted({name for source in sources for name in _evaluators(source)}):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} scores answers by code that evaluates texts ({', '.join(by)}), outside"
            " the sandbox; take another suite"
        )
    if confined and (lacking := sorted(_lacking(map(Path, confined.files.values())))):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} scores answers by code that evaluates texts and needs"
            f" {', '.join(lacking)}, which the sandbox lacks; take another suite"
        )


def confined_function(suite: BenchmarkRecipe) -> Function | None:
    """Return the function that scores a suite's answers if it evaluates texts, and so is called in the sandbox."""
    named, root = _fields(suite).get("process_results"), _source("")
    files = _modules(_texts_in(named))
    if not isinstance(named, str) or root is None or not all(file.is_relative_to(root) for file in files):
        return None
    if not any(_evaluators(file.read_bytes()) for file in files):
        return None
    places = {file.relative_to(root.parent).as_posix(): str(file) for file in files}
    module = next(iter(places)).removesuffix(".py").replace("/", ".")
    return Function(module=module, name=named.rpartition(".")[2], files=places)


def runs_programs(suite: BenchmarkRecipe) -> bool:
    """Whether a suite's task runs programs that the model writes."""
    return bool(_fields(suite).get("unsafe_code"))


def _fields(suite: BenchmarkRecipe) -> dict[str, Any]:
    """Return the fields of a suite's task, those of the recipe in place of its own; functions are names of places."""
    suite = tasks_of(suite)[0]
    return ((_given(suite)[0] or {}) if suite.is_task else {}) | suite.lm_eval


def _own_examples(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> Any:
    """Return the examples that a task has itself, or what names them; None if it has none or the recipe names rows."""
    own = whole.get("fewshot_config")
    return own.get("samples") if isinstance(own, dict) and not suite.fewshot_uri else None


def _check_repeats(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    if suite.is_task and _given(suite)[0] is not None:  # else the task's own settings are not known on this machine
        check_repeats(suite.name, whole, metric=suite.metric)


def _check_examples(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    own, samples = whole.get("fewshot_config"), _own_examples(suite, whole)
    if own is not None and not isinstance(own, dict):
        raise RecipeError(f"{suite.name}: fewshot_config={own!r:.80}; expected a mapping")
    shots = (whole.get("num_fewshot") if suite.num_fewshot is None else suite.num_fewshot) or 0
    if isinstance(samples, list) and shots > len(samples):
        raise RecipeError(f"{suite.name}: num_fewshot={shots}; the task has {len(samples)} examples of its own")


def _sources(config: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the source of each module of lm-eval whose function sees answers, and of those that it imports."""
    named = [config.get(name) for name in ("process_results", "metric_list", "filter_list")]
    return map(Path.read_bytes, _modules(_texts_in(named)))


def _evaluators(source: bytes) -> set[str]:
    """Return what in a module's source evaluates texts as code: functions of Python, and packages that it imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in EVALUATORS:
            found.add(node.id)
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        found |= EVALUATING_PACKAGES & {name.partition(".")[0] for name in names}
    return found


def _lacking(files: Iterable[Path]) -> set[str]:
    """Return the packages that modules import anywhere and the sandbox lacks, and what starts processes."""
    names = set[str]()
    for file in files:
        found: list[ast.AST] = [ast.parse(file.read_bytes())]
        for node in found:  # the list grows during the loop
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= set(_imported([node]))
            found += ast.iter_child_nodes(node)
    known = sys.stdlib_module_names - {"subprocess", "multiprocessing"} | {*PACKAGES, *STAND_INS, "lm_eval"}
    return names - known


def _modules(named: Iterable[Any]) -> list[Path]:
    """Return the files of the functions of lm-eval's tasks that are named, and of those of tasks that they import.

    A function is named by the path of its module's file with its own name in place of the suffix.
    """
    texts = (one for one in named if isinstance(one, str) and os.path.isabs(one))
    found = [path for path in dict.fromkeys(Path(one.rpartition(".")[0] + ".py") for one in texts) if path.is_file()]
    for path in found:  # the list grows during the loop
        source = path.read_bytes()
        for other in sorted(path.parent.glob("*.py")):
            if other not in found and re.search(rb"import.*\b%s\b|\b%s import" % ((other.stem.encode(),) * 2), source):
                found.append(other)
        found += [other for other in _of_tasks(source) if other not in found]
    return found


def _of_tasks(source: bytes) -> Iterator[Path]:
    """Yield the files of the modules of lm-eval's tasks that a module's source imports by their whole name."""
    root = _source("")
    if root is None:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lm_eval.tasks."):
            place = root.joinpath(*(node.module or "").split(".")[1:])
            names = ("__init__", *(one.name for one in node.names))
            places = (place.with_suffix(".py"), *(place / f"{name}.py" for name in names))
            yield from (one for one in places if one.is_file())


def _check_installed(suite: BenchmarkRecipe, whole: Mapping[str, Any]) -> None:
    """Raise RecipeError if the functions of lm-eval's task import what is not installed, or need data of NLTK's."""
    modules = _modules(_texts_in(whole))
    names = {name for path in modules for name in _imported(ast.parse(path.read_bytes()).body)}
    if lacking := sorted(name for name in names if importlib.util.find_spec(name) is None):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} imports {', '.join(lacking)}; install what has them:"
            f" pip install {_extra_with(lacking) or ' '.join(lacking)}"
        )
    for name, wanted in dict.fromkeys(one for path in modules for one in VERSIONS.findall(path.read_bytes())):
        if not (found := importlib.metadata.version(name.decode())).startswith(wanted.decode()):
            raise RecipeError(
                f"{suite.name}: task={suite.task!r} needs {name.decode()} {wanted.decode()}, and {found} is installed;"
                f" pip install {_extra_with([name.decode()]) or name.decode() + '==' + wanted.decode()}"
            )
    wanted = {one.decode() for path in modules for one in NLTK_DATA.findall(path.read_bytes())}
    if lacking := sorted(one for one in wanted if not _is_in_nltk(one)):
        raise RecipeError(
            f"{suite.name}: task={suite.task!r} reads {', '.join(lacking)} of NLTK's data, which this machine lacks;"
            f" set NLTK_DATA, or: python -m nltk.downloader {' '.join(os.path.basename(one) for one in lacking)}"
        )


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts_in(one)


def _imported(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the first names of what a module imports when it is imported itself, where it does not do without."""
    for one in body:
        if isinstance(one, ast.Import):
            yield from (name.name.partition(".")[0] for name in one.names)
        if isinstance(one, ast.ImportFrom) and one.module and not one.level:
            yield one.module.partition(".")[0]
        if isinstance(one, ast.Try) and all(isinstance(handler.body[-1], ast.Raise) for handler in one.handlers):
            yield from _imported(one.body)


def _extra_with(names: Sequence[str]) -> str:
    """Return lm-eval's extra that has one of these packages, in pip's form; empty if none has."""
    needed = importlib.metadata.requires("lm_eval") or ()
    having = (one for one in needed if re.split(r"[^\w.-]", one)[0] in names)
    extras = sorted(found[1] for one in having if (found := re.search(r"extra == [\"'](.+?)[\"']", one)))
    return f"'lm-eval[{extras[0]}]'" if extras else ""


def _is_in_nltk(name: str) -> bool:
    data = importlib.import_module("nltk.data")  # of the task's packages, and none of this project's

    try:
        data.find(name)
    except LookupError:
        return False
    return True

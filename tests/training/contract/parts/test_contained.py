"""Parts from outside are held to their job: no writing outside its folder, and no call without an end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.outside import writer
from tests.training.data import chain
from tests.training.data.filter.test_filter import no_models
from training.contract.parts.contained import Bounds, contained
from training.contract.parts.outside import PartFailed, guarded
from training.contract.records import read_record
from training.data.filter.settings import FilterRecipe
from training.data.sections import with_parts


@pytest.fixture
def bounds(tmp_path, monkeypatch):
    """The job's folder and another artifact in one store; temporary files are elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for name in ("temporary", "elsewhere", "store/asset/other", "store/asset/own"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "store/asset/other/artifact.json").write_text("{}")
    (tmp_path / "temporary" / "link").symlink_to(tmp_path / "store/asset/other/artifact.json")
    monkeypatch.chdir(tmp_path)
    return Bounds(folder=str(tmp_path / "store/asset/own"), stores=(str(tmp_path / "store"),))


WRITES = {
    "own/a.txt": lambda: Path("store/asset/own/a.txt").write_text("x"),
    "own, moved": lambda: os.replace(
        shutil.copy("store/asset/other/artifact.json", "temporary/a"), "store/asset/own/b"
    ),
    "temporary": lambda: shutil.rmtree(tempfile.mkdtemp()),
    "reads another": lambda: Path("store/asset/other/artifact.json").read_text(),
    "a folder that is there": lambda: Path("elsewhere").mkdir(exist_ok=True),
    "device": lambda: Path("/dev/null").write_text("x"),
}
STRAYS = {
    "elsewhere": lambda: Path("elsewhere/a.txt").write_text("x"),
    "appends": lambda: open("store/asset/other/artifact.json", "a").close(),
    "descriptor": lambda: os.open("store/asset/other/b", os.O_CREAT | os.O_WRONLY),
    "through a link": lambda: open("temporary/link", "r+").close(),
    "removes": lambda: os.remove("store/asset/other/artifact.json"),
    "removes all": lambda: shutil.rmtree("store/asset/other"),
    "moves away": lambda: os.rename("store/asset/other/artifact.json", "temporary/b"),
    "moves there": lambda: os.rename("temporary/link", "store/asset/other/b"),
    "new folder": lambda: os.makedirs("store/another/a"),
    "shortens": lambda: os.truncate("store/asset/other/artifact.json", 0),
    "links": lambda: os.symlink("artifact.json", "store/asset/other/c"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_part_writes_in_the_folder_of_its_job_and_among_temporary_files(bounds, name):
    with contained(bounds):
        guarded("part mine", "failed", WRITES[name])()


@pytest.mark.parametrize("name", STRAYS)
def test_a_part_that_writes_elsewhere_is_told_by_its_name_and_changes_nothing(bounds, name):
    def listed():
        return sorted((path, path.stat().st_size) for path in Path().rglob("*"))

    before = listed()
    with contained(bounds), pytest.raises(PartFailed, match=r"part mine .*: /.*/"):
        guarded("part mine", "failed", STRAYS[name])()
    assert listed() == before


def test_a_part_that_hides_the_refusal_fails_all_the_same(bounds):
    def hides():
        try:
            STRAYS["elsewhere"]()
        except Exception:
            return "nothing happened"

    with contained(bounds), pytest.raises(PartFailed, match="part mine writes outside"):
        guarded("part mine", "failed", hides)()


def test_pedigree_itself_writes_where_it_likes(bounds):
    with contained(bounds):
        guarded("part mine", "failed", lambda: None)()
        STRAYS["elsewhere"]()
    guarded("part mine", "failed", STRAYS["elsewhere"])()


def test_caches_of_libraries_are_allowed_except_in_a_store(bounds, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOME_CACHE_DIR", str(tmp_path / "store" / "cache"))
    for path, is_allowed in {
        "home/.cache/x": True,
        "home/x": False,
        "elsewhere/pack/__pycache__/x.pyc": True,
        "store/cache/x": True,
        "store/x": False,
    }.items():
        assert bounds.allow(str(tmp_path / path)) is is_allowed, path
    hidden = Bounds(folder=str(tmp_path / "home/.runs/asset/own"), stores=(str(tmp_path / "home/.runs"),))
    assert not hidden.allow(str(tmp_path / "home/.runs/asset/other/x"))
    assert hidden.allow(str(tmp_path / "home/.runs/asset/own/x")) and hidden.allow(str(tmp_path / "home/.cache/x"))


# Calls that end the process, or return in two


@pytest.mark.parametrize(("leaves", "says"), [(sys.exit, "SystemExit: 3"), (quit, "SystemExit: 3")])
def test_a_part_that_ends_the_process_has_failed(leaves, says):
    with pytest.raises(PartFailed, match=f"part mine failed: {says}"):
        guarded("part mine", "failed", leaves)(3)


FORKS = """
from training.contract.parts.contained import Bounds, contained
from training.contract.parts.outside import OutsidePart, PartsOf, guarded
from training.contract.records import RecipeError
import os, own_forks, sys
what = sys.argv[1]
try:
    if what == "import":
        OutsidePart("own_forks_on_import:part").load()
    elif what == "settings":
        PartsOf("section", {"mine": {}}).settings("mine", own_forks.Settings)
    else:
        with contained(Bounds(folder="/") if what == "bounds" else None):
            guarded("part mine", "failed", own_forks.forks)()
except Exception as error:
    print(type(error).__name__)
print("goes on", flush=True)
os.wait()
"""
FORKING = """
import dataclasses, os, sys
def forks():
    if os.fork() == 0:
        LEAVES
@dataclasses.dataclass(frozen=True)
class Settings:
    def __post_init__(self):
        forks()
"""


@pytest.mark.parametrize("leaves", ["return", "raise ValueError('lost')", "sys.exit(0)"])
@pytest.mark.parametrize("what", ["call", "bounds", "import", "settings"])
def test_only_one_process_goes_on_after_a_part_that_forks(tmp_path, what, leaves):
    (tmp_path / "own_forks.py").write_text(FORKING.replace("LEAVES", leaves))
    (tmp_path / "own_forks_on_import.py").write_text("import own_forks\nown_forks.forks()\npart = 1\n")
    path = f"{Path.cwd()}{os.pathsep}{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", FORKS, what],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


def test_a_part_that_ends_the_process_of_its_job_without_a_word_is_told_by_its_name(tmp_path):
    code = (
        "import functools, os\n"
        "from training.contract.parts.contained import Bounds, contained\n"
        "from training.contract.parts.outside import guarded\n"
        "with contained(Bounds(folder='/'), end=functools.partial(print, flush=True)):\n"
        "    guarded('part mine', 'failed', lambda: os.fork() or os._exit(0))()\n"  # a process of its own may
        "    guarded('part mine', 'failed', os._exit)(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "part mine ended the process of its job: os._exit(0)\n"), done.stderr


# Calls without an end

SLEEPS = """
from training.data.filter.rule import *
import time
def measure(page):
    {does}
    return ""
rule = Rule(settings=CommonSettings, measure=lambda s, t: measure)
"""


def scored(root: Path, module: str, *, workers: int = 1, hang_seconds: float = 1800.0):
    data = {"rules": ["mine"], "parts": {"mine": {"from": f"{module}:rule"}}}
    settings = with_parts({"filter": read_record(FilterRecipe, data, where="filter")})
    pages = chain.documents(root, "s1", [["One page."], ["Another."]], asset="extracted_documents")
    limits = {"workers": workers, "hang_seconds": hang_seconds}
    return chain.run(root, "score", "document_scores", "tiny@s1", settings, [pages, no_models(root)], **limits)


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("time.sleep(3600)", r"did not return within 1 s \(hang_seconds"),
        ("while True: pass", r"did not return within 1 s \(hang_seconds"),
        ("open('{root}/stray.txt', 'w')", r"writes outside the folder of its job: /.*/stray\.txt"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_ends_with_the_name_of_the_part_and_makes_nothing(tmp_path, monkeypatch, does, problem, workers):
    module = writer(tmp_path, monkeypatch)(SLEEPS.format(does=does.format(root=tmp_path)))
    seconds = 1.0 if "did not return" in problem else 1800.0  # a busy machine may take a second for a call that ends
    with pytest.raises(PartFailed, match=rf"filter rule mine \({module}:rule\) {problem}"):
        scored(tmp_path, module, workers=workers, hang_seconds=seconds)
    assert not list(tmp_path.glob("document_scores/*/artifact.json")) and not (tmp_path / "stray.txt").exists()


def test_a_part_that_cannot_be_interrupted_ends_the_process():
    code = """
from training.contract.parts.contained import Bounds, contained, running
import time
with contained(Bounds(folder="/", seconds=0.2), end=lambda said: print(said, flush=True)), running("part mine"):
    while True:
        try:
            time.sleep(3600)
        except Exception:
            pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (
        2,
        "part mine did not return within 0.2 s (hang_seconds in the profile)\n",
    )


def test_a_training_may_take_long_while_it_shows_signs_of_life():
    code = """
from training.contract.parts.contained import Bounds, contained, running
import itertools, sys, time
lines = itertools.count()
busy = sys.argv[1] == "busy"
with contained(Bounds(folder="/", seconds=0.4), lambda: next(lines) if busy else 0), running("method", trains=True):
    time.sleep(2 if busy else 3600)
print("trained")
"""
    busy, idle = (
        subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=False)
        for how in ("busy", "idle")
    )
    assert (busy.returncode, busy.stdout) == (0, "trained\n"), busy.stderr
    assert "PartFailed: method" in idle.stderr and "0.4 s" in idle.stderr

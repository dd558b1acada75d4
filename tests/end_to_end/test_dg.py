"""Dagster's command `dg`: in this folder, and in a project that places the pipeline by one YAML file.

`dg` is an extra that the environment of the tests lacks; `make dg` runs this file in an environment that has it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from assets.services.stores import dagster_home, make_stores
from assets.state.chain import CHAIN
from tests.end_to_end.dagster_dev import answers, free_port, wait_for
from tests.small_kitchen import RECIPES

DG = Path(sys.executable).with_name("dg")
HERE = Path(__file__).parents[2]
COMPONENT = "assets.component.PedigreeComponent"
CELL = "kitchen-small@kitchen-1"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not DG.exists(), reason="the extra `dg` is not installed; `make dg` has it"),
]


@pytest.fixture
def theirs(tmp_path):
    """A project of somebody else, whose only definitions are a YAML file that names the component."""
    project = tmp_path / "theirs"
    models = project / "src" / "theirs" / "defs" / "models"
    models.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "theirs"\nversion = "1"\n\n'
        '[tool.dg]\ndirectory_type = "project"\n\n[tool.dg.project]\nroot_module = "theirs"\n'
    )
    (project / "src" / "theirs" / "__init__.py").touch()
    (project / "src" / "theirs" / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n\n@dg.definitions\ndef defs():\n"
        "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    given = {"root": "runs", "profile": "local"}
    (models / "defs.yaml").write_text(yaml.safe_dump({"type": COMPONENT, "attributes": given}))
    return project


@pytest.fixture(params=["here", "theirs"])
def place(request, tmp_path):
    """The folder in which `dg` is called, and the root that its definitions have."""
    if request.param == "here":
        return HERE, tmp_path / "runs"
    project = request.getfixturevalue("theirs")
    return project, project / "runs"


def environment(root):
    paths = os.pathsep.join(["src", *filter(None, sys.path)])
    home = str(dagster_home(root))
    found = {"PEDIGREE_ROOT": str(root), "PEDIGREE_RECIPES": str(RECIPES), "DAGSTER_HOME": home, "PYTHONPATH": paths}
    return {**os.environ, "DAGSTER_DISABLE_TELEMETRY": "1", **found}


def dg(place, *arguments):
    folder, root = place
    done = subprocess.run(
        [DG, *arguments], cwd=folder, env=environment(root), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_what_there_is_is_listed_checked_launched_and_served(place):
    folder, root = place
    root.mkdir()
    make_stores(root, f"sqlite:///{root}/mlflow.db")
    listed = json.loads(dg(place, "list", "defs", "--json"))
    assert set(CHAIN) <= {one["asset_key"] for one in listed["assets"]}
    assert COMPONENT in dg(place, "list", "components")
    dg(place, "check", "toml")
    dg(place, "check", "defs")
    dg(place, "launch", "--assets", "crawl_archives", "--partition", CELL)
    assert list(root.glob("crawl_archives/*/artifact.json"))

    port = free_port()
    with open(folder.parent / "dg.log" if folder != HERE else root / "dg.log", "wb") as output:
        argv = [DG, "dev", "--port", str(port), "--no-check-yaml"]
        server = subprocess.Popen(
            argv, cwd=folder, env=environment(root), stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_for(
                lambda: answers(f"http://127.0.0.1:{port}/server_info"), 600, lambda: Path(output.name).read_text()
            )
        finally:
            os.killpg(server.pid, signal.SIGINT)
            server.wait(300)

"""The pipeline in another Dagster project, by a YAML file of a few lines."""

from __future__ import annotations

import dagster as dg

from assets.state.chain import CHAIN

DEFS = """\
type: assets.component.PedigreeComponent
attributes:
  root: made
  profile: local
"""


def test_a_short_yaml_file_places_the_pipeline_into_another_project(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "elsewhere"\n'
    )
    folder = tmp_path / "elsewhere" / "defs" / "models"
    folder.mkdir(parents=True)
    (folder / "defs.yaml").write_text(DEFS)
    for package in (folder.parent, folder.parent.parent):
        (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = dg.load_from_defs_folder(path_within_project=folder)
    graph = loaded.resolve_asset_graph()
    assert {key.path[-1] for key in graph.materializable_asset_keys} == set(CHAIN)
    assert loaded.resolve_job_def("pedigree_run") and loaded.resources["pipeline"].root == str(tmp_path / "made")

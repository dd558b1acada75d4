"""Dagster's code location: assets, checks, automation and resources. Dagster loads `defs`.

This module reads PEDIGREE_ROOT (the folder of artifacts, ./runs by default) and PEDIGREE_PROFILE (local by default).
assets/state/recipe_folders.py reads PEDIGREE_RECIPES (further folders of recipes).
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import dagster as dg

from assets.graph.job import run_job
from assets.graph.notices import failed_runs
from assets.graph.partitions import Partitions, offered_recipes
from assets.graph.pipeline import Pipeline
from assets.graph.requested import build_recipes
from assets.materialize.assets import all_assets
from assets.run.automation import automation
from assets.run.conditions import CONDITION, NewSnapshots
from assets.services.root import root_folder


def definitions(root: Path, profile: str) -> dg.Definitions:
    """The Dagster definitions for one root and profile."""
    partitions = Partitions(offered_recipes(root))
    sensors, schedules, jobs = automation(root, profile)
    return dg.Definitions(
        assets=[*all_assets(partitions, CONDITION), build_recipes(partitions)],
        jobs=[*jobs, run_job()],
        sensors=[NewSnapshots(root, profile), *sensors, failed_runs(profile)],
        schedules=schedules,
        resources={"pipeline": Pipeline(root=str(root), profile=profile)},
        executor=dg.in_process_executor,
    )


defs = definitions(
    root_folder(os.environ.get("PEDIGREE_ROOT", "runs"), "PEDIGREE_ROOT").resolve(),
    os.environ.get("PEDIGREE_PROFILE", "local"),
)
gc.freeze()  # Dagster and the definitions live as long as the process; no collection of garbage looks at them

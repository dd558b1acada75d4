"""The Dagster resource of the assets: the root, the profile, and how this run reads and compares recipes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from assets.graph.job import launch_of
from assets.registry.exact import compare_exactly
from assets.state.cell import Comparison
from assets.state.compare import compare
from assets.state.liveness import Launched, living
from assets.state.recipe_folders import load_recipe, recipe_folders
from resources.profile import Profile, load_profile
from resources.tracking.process import OWNER
from resources.tracking.reports import Tracking
from training.contract.records import read_record
from training.contract.user_input.places import local_path
from training.recipe.recipe import Recipe


class Pipeline(dg.ConfigurableResource):
    """The root and profile of a run.

    With `cancels_on_interrupt`, Ctrl-C in a terminal also ends the jobs. `resolved_recipe` is a recipe as JSON, used
    instead of the recipe file of the same name; "" if there is none.
    """

    root: str
    profile: str = "local"
    cancels_on_interrupt: bool = False
    resolved_recipe: str = ""
    exact: bool = False  # make artifacts again that other code of the same stage version made

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Pipeline]:
        """Show that a run of the UI or of automation is alive while it goes on; `pedigree run` shows it itself."""
        run = context.run
        if run is None or launch_of(run.tags):
            yield self
            return
        itself = Launched(
            launch=run.run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            owner=OWNER,
            what=f"run {run.run_id[:8]} of the UI or of automation",
        )
        with living(self.root_path, itself):
            yield self

    @property
    def root_path(self) -> Path:
        """The root as an absolute path, because a job may run in another working directory."""
        return local_path(self.root, "root").resolve()

    def recipe(self, partition: str) -> Recipe:
        """Return the recipe of a partition key, such as `kitchen` for `kitchen@kitchen-1`."""
        name = partition.partition("@")[0]
        if self.resolved_recipe and (data := json.loads(self.resolved_recipe))["name"] == name:
            return read_record(Recipe, data)
        return load_recipe(name, recipe_folders(self.root_path))

    def compared(self, recipe: Recipe) -> Comparison:
        """Return the comparison of a recipe with its artifacts.

        With `exact`, artifacts made by different code count as outdated.
        """
        if self.exact:
            return compare_exactly(recipe, self.root_path, self.tracking())
        return compare(recipe, self.root_path)

    def loaded_profile(self) -> Profile:
        """The profile, read from its file."""
        return load_profile(self.profile)

    def tracking(self) -> Tracking:
        """The tracking client of this root and profile."""
        return tracking_of(self.root_path, self.loaded_profile())


def tracking_of(root: Path, profile: Profile) -> Tracking:
    """The tracking client of a root; one per root and process, because opening one takes seconds."""
    key = (root, profile.tracker)
    if key not in _TRACKING:
        _TRACKING[key] = Tracking(profile.tracker, root)
    return _TRACKING[key]


def report_for(owner: str, root: Path, profile: Profile) -> None:
    """Let this process report to MLflow through the writer of another process, which is the owner of what it opens."""
    _TRACKING[root, profile.tracker] = Tracking(profile.tracker, root, in_background=False, owner=owner)


_TRACKING: dict[tuple[Path, str | None], Tracking] = {}

"""The pipeline as one component of Dagster, for a `defs.yaml` of any Dagster project.

```yaml
type: assets.component.PedigreeComponent
attributes:
  root: /data/pedigree
  profile: local
```
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from assets.definitions import definitions
from assets.services.root import root_folder


class PedigreeComponent(dg.Component, dg.Model, dg.Resolvable):
    """From raw crawl to an evaluated language model: the assets, checks, jobs and sensors of Pedigree.

    `root` is the folder of artifacts and of saved recipes, relative to the project; `profile` says where stages run.
    """

    root: str = "runs"
    profile: str = "local"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of one root and profile."""
        return definitions((Path(context.project_root) / root_folder(self.root, "root")).resolve(), self.profile)

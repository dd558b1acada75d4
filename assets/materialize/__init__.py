"""One materialization: from a cell (an asset in a partition) to a job, followed to its artifact.

An asset calls `materialize`, which compares the recipe with the artifacts, reuses an artifact or submits a job, follows
the files that the job writes, writes the reference, and reports to Dagster.

| module | what it holds |
|---|---|
| `assets` | the assets with the functions that materialize them |
| `materialize`, `promote` | what Dagster calls; `promoted_model` also moves the champion |
| `make`, `before_start` | an artifact reused or made by a job; what forbids to start |
| `jobs`, `follow`, `reports` | a cell as a job, followed to its artifact; what it writes meanwhile |
| `watch`, `watchers` | the Dagster run that follows a job; all runs that wait for it |
| `causes`, `patience` | why a job ended, how long to wait and how often to retry |
| `shared` | artifacts that another recipe made |
| `events` | one listener in this process for what happens to cells |
"""

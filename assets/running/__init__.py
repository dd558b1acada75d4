"""The bridge between Dagster and the stages.

An asset calls `materialize`, which compares the recipe with the artifacts, reuses an artifact or submits a job, follows
the files that the job writes, writes the reference, and reports metadata, data version and checks to Dagster.

| module | what it holds |
|---|---|
| `materialize` | what Dagster calls for an asset and partition |
| `pipeline` | the Dagster resource of the assets: root, profile, recipe |
| `watch` | the Dagster run that follows a job |
| `make` | a cell's artifact: reused, or made by a job |
| `jobs` | a cell as a job and as a task of a backend |
| `follow` | a job from its submission to its artifact |
| `reports` | what a job writes while it runs, passed on |
| `made` | the result of a materialization: metadata, data version and checks |
| `causes`, `patience`, `watchers` | why a job ended, how long to wait, who waits |
| `events` | a listener for what happens to cells in this process |
"""

"""The one bridge between Dagster and the stages: declare, submit, watch, record.

An asset calls `materialize`; what happens next is: compare, reuse or submit, follow the job's own files, write the
reference, and say in metadata, data version and checks what came out.

| module | what it holds |
|---|---|
| `materialize` | what Dagster calls for an asset and partition |
| `pipeline` | the resource that assets ask for: root, profile, recipe |
| `watch` | the Dagster run that follows a job |
| `make` | a cell's artifact: reused, or made by a job |
| `jobs` | a cell as a job and as a task of a backend |
| `follow` | a job from its submission to its artifact |
| `reports` | what a job writes while it runs, passed on |
| `made` | what came out, as metadata, data version and checks |
| `causes`, `patience`, `watchers` | why a job ended, how long to wait, who waits |
| `events` | who hears what happens to cells in this process |
"""

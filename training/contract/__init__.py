"""The contract between a stage and whoever runs it.

A stage of your own uses these names, and should need no other:

| name | what it is |
|---|---|
| `stage`: `Stage`, `Asset`, `Input` | how a folder declares its stages, assets and what they read |
| `job`: `Job`, `InputArtifact` | what is to be made, of what, with which settings |
| `job`: `Work`, `Outcome`, `Counts` | where a stage writes, and what it returns |
| `job`: `DataError`, `RefusedInput`, `StopRequested` | how it ends otherwise |
| `artifact`: `Artifact`, `find` | what was made, with its record |
| `records`: `RecipeError`, `read_record`, `write_record` | settings as typed records |
| `running.phase`: `Phase` | ranks in several phases |
| `files.writing` | whole writes, or none |

`running` runs a job to its commit, by `engines`; `identity` says which code and numerics made an artifact; `parts`
finds parts from outside; `process` has processes and their ends; `user_input` reads what people hand in.
"""

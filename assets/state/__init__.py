"""What is there under a root and what is missing, by comparing a recipe with the artifacts. Never imports Dagster.

| module | what it holds |
|---|---|
| `chain` | all assets in order, and their partitions |
| `cell`, `compare` | one asset in one partition; the state of all of a recipe |
| `asked_cell`, `requested_settings`, `made_addresses` | what the recipe asks for, and its fingerprint |
| `reasons` | how an artifact differs from what is asked for |
| `references`, `repairs` | which artifact a partition points to; damage, and its repair |
| `tombstones`, `kept_models` | what was withdrawn, and models kept from before |
| `recipe_folders` | where recipes are found |
| `liveness`, `removal_lock` | who is at work, and what may not be removed meanwhile |

Every room may import all of these; nothing here imports another room.
"""

"""The orchestrator: the assets of a recipe in Dagster, and the commands of `pedigree`.

Each folder stands on those below it (docs/architecture.md). Dagster loads `definitions` and `component` by name.
"""

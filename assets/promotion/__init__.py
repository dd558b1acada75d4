"""Promotion of a model to champion, and rollback.

| module | what it holds |
|---|---|
| `promote` | carry out a decision of `promoted_model`: register, move the aliases |
| `by_hand` | `pedigree promote` and `pedigree rollback` |
| `champion` | the champion that a decision is made against, and whether a decision is stale |
| `standing` | whether a model is undamaged, and where it stands in the registry |
| `versions` | a registered version and its tags |
"""

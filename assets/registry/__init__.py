"""What is registered and promoted, and the record digests that were told to others.

| module | what it holds |
|---|---|
| `decision` | the cells behind a decision |
| `champion`, `standing` | the champion that a decision is made against; where a recipe's model stands |
| `versions`, `names` | a registered version and its tags; names that people write |
| `by_hand` | `pedigree promote` and `pedigree rollback` |
| `kept_digests` | record digests that Dagster and MLflow keep, compared with the records |
| `exact` | what `run --exact` makes again, except what a registered version was made from |
| `launch`, `numbers`, `decision_page` | what MLflow and the report are told |

Carrying a decision out is `materialize.promote`. Every room above may import all of these.
"""

"""What Dagster sees. Nothing here makes an artifact: `materialize.assets` hands in the functions that do.

| module | what it holds |
|---|---|
| `declare`, `partitions`, `checks` | assets, their partitions, and gates as asset checks |
| `requested` | the asset `recipes`: what is asked of every other asset |
| `pipeline` | the resource of the assets: root, profile, recipe |
| `job`, `notices`, `budget`, `bill` | a run, the webhook, what automation may spend, what a job took |
| `result`, `evidence`, `pictures` | a materialization: metadata, data version, checks |
"""

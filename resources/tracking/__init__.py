"""MLflow: runs, metrics, inputs and the model registry. Only this package imports mlflow, and only where it must.

What a stage reports goes to a spool first: an append-only file under the root. One writer process replays it to
MLflow, so a tracking server that is slow, down or not yet created never stops or slows a stage. The spool is the truth
and MLflow a view of it: every line can be applied twice with the result of once (runs are found by their key, MLflow
keeps equal metric rows and inputs once), so a replay after a crash doubles nothing, and another store gets everything.

| module | what it holds |
|---|---|
| `reports` | what stages report, and what was reported before |
| `spool` | the file in which reports wait, and how far it was sent |
| `process` | the writer process: who starts it, and what it does until its parent is gone |
| `writer` | one line of the spool as calls of MLflow |
| `registry` | a registered model: its versions and aliases |
| `store` | the address of MLflow's store, a client for it, and its server |
| `errors` | what MLflow says, as sentences without secrets |
"""

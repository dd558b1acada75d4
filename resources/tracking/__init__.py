"""MLflow: runs, metrics, inputs and the model registry. Only this package imports mlflow, and only when needed.

A report of a stage first goes to the spool, an append-only file under the root. One writer process replays the spool to
MLflow, so a tracking server that is slow, down or not yet created never stops or slows a stage. The spool is the
source of truth. Every line is idempotent: runs are found by their key, and MLflow keeps equal metric rows and inputs
once. So a replay after a crash duplicates nothing, and a new store gets all reports.

| module | what it holds |
|---|---|
| `reports` | functions with which stages report, and queries for earlier reports |
| `spool` | the file in which reports wait, and how far it was sent |
| `process` | the writer process: how it is started, and when it ends |
| `writer` | one line of the spool as calls of MLflow |
| `registry` | a registered model: its versions and aliases |
| `loadable` | the files of a version by which MLflow loads its model, and the LoggedModel |
| `store` | the address of MLflow's store, a client for it, and its server |
| `deadline` | calls of a server that end within a time-out, however slowly it answers |
| `errors` | MLflow's errors as sentences without secrets |
"""

"""`pedigree doctor`: what commonly goes wrong on this machine, looked at before a run meets it.

`doctor` puts the findings together. `machine` looks at this machine, `storage` at the file system of the root, and
`stores` at the databases of Dagster and MLflow; `schedulers` asks Slurm and Kubernetes.
"""

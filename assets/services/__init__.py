"""The stores and servers of Dagster and MLflow under a root, and the signals that end them.

`root` and `stores` say whether a root can be written and make its databases; `dev` runs the servers, with `webserver`
and `end_with_parent` as programs of their own; `signals` is what Ctrl-C and SIGTERM do. `dagster_internals` is the one
module that imports private modules of Dagster.
"""

"""How artifacts are made: the recipe, the contract of a stage with its caller, and the stages, a folder each.

Knows neither Dagster nor MLflow nor the other packages.
"""

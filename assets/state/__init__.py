"""What is there under a root and what is missing, by comparing a recipe with the artifacts. Never imports Dagster."""

"""The stores and servers of Dagster and MLflow under a root, and the signals that end them."""

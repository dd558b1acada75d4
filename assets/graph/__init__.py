"""What Dagster sees: assets, partitions, checks, what recipes ask, a run, its results, budget and notices."""

"""One materialization: from a cell (an asset in a partition) to a job, followed to its artifact."""

"""One job from `job.json` to its commit: attempts, lease, ranks, reuse, accounts. Stages import little of it."""

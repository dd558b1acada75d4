"""Where a recipe runs: the profile, the compute backends, the tracker, and the webhook. Knows no stage and no asset."""

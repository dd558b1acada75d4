"""The mark of a position without a target; alone in a module so that reading batches needs no torch."""

IGNORED = -100  # what torch and transformers use

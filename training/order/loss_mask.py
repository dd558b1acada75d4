"""The label of a position without a target, in its own module so that reading batches needs no torch."""

IGNORED = -100  # the value that torch and transformers use

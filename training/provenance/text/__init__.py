"""The places of any text in the training data, by suffix arrays of the shards."""

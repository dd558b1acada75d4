"""Which code and which numerics made an artifact. What only refuses is left out of the code."""

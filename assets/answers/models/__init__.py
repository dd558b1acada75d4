"""Commands about made models: evaluate, contamination, compare, attest, export and serve."""

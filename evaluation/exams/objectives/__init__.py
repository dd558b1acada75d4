"""Scores of base models that were not trained on the next token: what they fill in, and a probe of their states."""

"""Losses from the hidden states of a pass, in chunks, so that the logits of a batch never exist at once.

From outside, `settings` is read by recipes (no torch), and `cross_entropy` and `distillation` by trainers.
"""

"""Losses from the hidden states of a pass, in chunks, so that the logits of a batch never exist at once.

From outside, `settings`, `loss`, `outside_losses` and `terms` are read by recipes (no torch), and `chunked` and
`teacher` by trainers.
"""

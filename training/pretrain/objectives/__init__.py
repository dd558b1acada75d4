"""Training objectives: which tokens of a packed row are given, and which are predicted. Uses numpy only.

From outside, `settings` is read by recipes, `rewriting` by objectives from a user's environment, and `objective` by
trainers.
"""

"""Optimizers, one file each; the learning-rate schedule, means of the weights, and clipping."""

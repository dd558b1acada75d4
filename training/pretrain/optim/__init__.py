"""Optimizers, one file each; the learning-rate schedule, averages of the weights, and gradient clipping."""

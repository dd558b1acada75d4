"""Alignment on answers that the model itself samples: training, drawing the answers, and rewarding them.

Methods, also those from outside, use `sampled`; the other modules are its parts.
"""

"""Compute backends: `base` describes one to its author, `backends` finds it, `size` is what it reads of a profile."""

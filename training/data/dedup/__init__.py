"""Duplicates: documents are signed, and those that repeat an earlier one are removed, or only the part that repeats.

The ranks of a phase write slices (`shuffle`) for the ranks of the next.
"""

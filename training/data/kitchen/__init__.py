"""The embedded default data set: a small closed world of cooking sites, generated from a seed as genuine WARC files.

`source` is the entrance: it writes files, and stages read them without knowing this package
(training/data/generated.py).
"""

"""The embedded default data set: a small closed world of cooking sites, generated from a seed as real WARC files.

`source` is the entry point: it writes files, which stages read without knowing this package
(training/data/generated.py).
"""

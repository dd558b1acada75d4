"""The text of one HTML page: its markup scanned, repaired, and reduced to the main text.

From outside, use `html`; the other modules are its parts. They know the section `extract` and terms of use, and neither
archives nor stages.
"""

"""Contamination: whether exam items occur in the data that models are trained on, and what this does to their scores.

Stages: `search` (`contamination`) and `report` (`contamination_report`). From outside, `verdict` reads what they found,
`scan` searches any files, and `trained_on` and `taught_by` say which data there are to search.
"""

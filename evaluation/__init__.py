"""Evaluation of the models: exams, contamination, the decision to promote, reports, and what a model hub is given.

From the top: `stages` declares every stage, and `python -m evaluation job.json` runs one. `hub/`, `report/`,
`contamination/`, `exams/` and `decision/` implement them; a room may import from those after it.
"""

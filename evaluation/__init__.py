"""Evaluation of the models: exams by lm-eval, contamination, the decision to promote, and the reports."""

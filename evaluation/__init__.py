"""Evaluation of the models: exams run by lm-eval, contamination, the decision to promote, and the reports."""

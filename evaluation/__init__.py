"""How well, and how honestly: exams by lm-eval, contamination, the decision to promote, the report."""

"""Exam items as data: the index of a recipe's suites, the documents that hold items, and whether an answer is right."""

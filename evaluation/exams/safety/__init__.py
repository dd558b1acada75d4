"""Requests that a model must refuse or answer: the stage `safety` (`asked`), and what counts as a refusal."""

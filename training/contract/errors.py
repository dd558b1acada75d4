"""How a job ends without an artifact, beside RecipeError: data, an input or a request stands in its way."""

from __future__ import annotations


class DataError(ValueError):
    """Data that a person named cannot be used: it is missing, empty, damaged or of the wrong form. Nothing was lost."""


class StopRequested(Exception):
    """A signal asked the job to stop; its state is saved, and the same command resumes from there."""


class RefusedInput(ValueError):
    """An input artifact exists but may not be used: a gate refused it, its digest changed, or a file is damaged."""

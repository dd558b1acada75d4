"""The stages of `python -m evaluation`: module, hand-written version, and the libraries that decide the output.

Standard library only; a stage's module is imported only in the process that runs it.
"""

from __future__ import annotations

from training.stages import Stage

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="evaluate",
            version="2",
            by_a_model=True,
            module="evaluation.scores",
            libraries=("lm-eval", "tokenizers", "torch", "transformers"),
        ),
        Stage(
            name="contamination",
            version="2",
            in_ranks=True,
            module="evaluation.contamination",
            libraries=("xxhash",),
        ),
        Stage(
            name="scaling",
            version="2",
            module="evaluation.scaling",
            libraries=("jinja2", "numpy", "plotly", "scipy"),
        ),
        Stage(
            name="card",
            version="12",
            module="evaluation.card",
            libraries=("huggingface-hub", "jinja2", "plotly"),
        ),
        Stage(name="promote", version="3", module="evaluation.gate"),
    )
}

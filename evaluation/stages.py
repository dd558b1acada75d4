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
            version="1",
            by_a_model=True,
            modules=(
                "evaluation.scores",
                "evaluation.harness",
                "evaluation.local_model",
                "evaluation.exams",
                "evaluation.alignment",
                "training.data.benchmarks",
                "training.generate.sampler",
            ),
            libraries=("lm-eval", "tokenizers", "torch", "transformers"),
        ),
        Stage(
            name="contamination",
            version="1",
            in_ranks=True,
            modules=(
                "evaluation.contamination",
                "evaluation.overlap",
                "evaluation.exams",
                "training.data.benchmarks",
                "training.data.grams",
                "training.data.gram_loops",
                "training.data.minhash",
                "training.data.native",
                "training.data.ngrams",
                "training.data.words",
            ),
            libraries=("xxhash",),
        ),
        Stage(
            name="scaling",
            version="2",
            modules=("evaluation.scaling",),
            libraries=("jinja2", "numpy", "plotly", "scipy"),
        ),
        Stage(
            name="card",
            version="11",
            modules=(
                "evaluation.card",
                "evaluation.closer",
                "evaluation.report",
                "evaluation.samples",
                "evaluation.scoreboard",
                "evaluation.truth",
            ),
            libraries=("huggingface-hub", "jinja2", "plotly"),
        ),
        Stage(name="promote", version="2", modules=("evaluation.gate", "evaluation.paired")),
    )
}

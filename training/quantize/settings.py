"""The recipe section `quantize`: whether the last model is also made with small numbers, and by which method."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError, no_such

NONE, INT4 = "none", "int4"
METHODS = ("int8", "int8_activations", "fp8", INT4)
GROUP = 32  # weights of a row that share a scale in int4, if the recipe does not say
UNAVAILABLE = {
    "awq": "it needs llm-compressor, which is not part of the locked environment",
    "gptq": "it needs llm-compressor or gptqmodel, which are not part of the locked environment",
    "gguf": "it is a file for other programs; `pedigree export --gguf q8_0` writes it",
    "nf4": "it needs bitsandbytes, which is not part of the locked environment",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeRecipe:
    """How the recipe's last model is quantized, as a second result beside it. No method here reads a page.

    `int8`: weights in 8 bits, with a scale for each row; `int8_activations`: also what a matrix multiplies, with a
    scale for each token; `fp8`: weights as floating-point numbers of 8 bits (e4m3), with a scale for each row; `int4`:
    weights in 4 bits, with a scale for each `group_size` of a row. Weights are rounded to the nearest number.
    Embeddings and the head stay as they are.

    `max_drop`: the 95 % interval of the drop from the last model's score must end at or below it, on every suite.
    """

    method: str = NONE
    group_size: int | None = None  # int4; null: 32
    max_drop: float = 0.05

    def __post_init__(self) -> None:
        if self.method in UNAVAILABLE:
            raise RecipeError(
                f"quantize.method: {self.method} is not made, because {UNAVAILABLE[self.method]}; there are"
                f" {', '.join(METHODS)}"
            )
        if self.method not in (NONE, *METHODS):
            raise RecipeError(no_such(f"quantize.method: {self.method}", self.method, (NONE, *METHODS)))
        if self.group_size is not None and self.method != INT4:
            raise RecipeError(f"quantize.group_size: without effect, because the method is {self.method}, not {INT4}")
        if self.group_size is not None and self.group_size < 2:
            raise RecipeError(f"quantize.group_size={self.group_size}; at least 2 weights share a scale")
        if not 0 <= self.max_drop <= 1:
            raise RecipeError(f"quantize.max_drop={self.max_drop}: must be a share from 0 to 1")
        if not self.is_asked and self.max_drop != QuantizeRecipe.__dataclass_fields__["max_drop"].default:
            raise RecipeError("quantize.max_drop: without effect, because quantize.method is none")

    @property
    def is_asked(self) -> bool:
        """Whether the last model is quantized."""
        return self.method != NONE

    @property
    def group(self) -> int | None:
        """How many weights of a row share a scale; None: all."""
        return (self.group_size or GROUP) if self.method == INT4 else None

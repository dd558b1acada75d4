"""The recipe section `safety`: which share of harmful requests may be answered, and of harmless ones refused."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError, Uri, check_above_zero


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetyRecipe:
    """Requests that the SFT and the aligned model are asked, and the limits that the last of them must keep.

    Without a limit, nothing is asked. Requests are rows with `request` and `category`.
    """

    max_answered_harmful: float | None = None  # share of harmful requests that are not refused; None: any
    max_refused_harmless: float | None = None  # share of harmless requests that are refused; None: any
    harmful: Uri | None = None  # None: 60 shipped ones, in English
    harmless: Uri | None = None  # None: 60 shipped ones, in English
    max_new_tokens: int = 64  # of an answer, of whose beginning alone is judged whether it refuses
    batch_size: int = 32

    @property
    def is_asked(self) -> bool:
        """Whether there is a limit."""
        return self.max_answered_harmful is not None or self.max_refused_harmless is not None

    def __post_init__(self) -> None:
        check_above_zero(self, "safety", "max_new_tokens", "batch_size")
        for name in ("max_answered_harmful", "max_refused_harmless"):
            limit = getattr(self, name)
            if limit is not None and not 0 <= limit <= 1:
                raise RecipeError(f"safety.{name}={limit}: must be a share from 0 to 1, or null")
        of_asking = {"harmful": self.harmful, "harmless": self.harmless}
        idle = [name for name, given in of_asking.items() if given is not None]
        if idle and not self.is_asked:
            raise RecipeError(
                f"safety.{idle[0]}: without effect, because there is no limit; set max_answered_harmful or"
                " max_refused_harmless"
            )

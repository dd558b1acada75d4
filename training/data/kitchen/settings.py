"""The recipe section `kitchen`: the size of the generated world, and its seed."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError

DISHES_MAX = 72
VALUES_PER_ATTRIBUTE = 8
LEAKS = 2  # pages of each kind that quote the exam, where the recipe does not say
TESTED_SUMS_MAX = 400  # twice the pairs of numbers that no page adds


@dataclass(frozen=True, kw_only=True, slots=True)
class KitchenWorld:
    """One generated world of cooking sites.

    `dishes` is a multiple of 8, so that each of an attribute's 8 values is true of equally many dishes and guessing by
    frequency gains nothing in the exam. `pages` is the number of responses in one snapshot, wanted and unwanted.
    The exam asks for `tested_sums` sums, and pages state every second one. `withheld_exam_answers` leaves all answers
    of the exam out of all pages, as a control without knowledge. `leaks` is the number of pages of each of two kinds
    that quote the exam with its answers; None stands for 2, or for none where the answers are withheld. Where they are
    withheld, these pages quote half of the facts, so that the others can be compared with them.
    """

    seed: int = 20
    dishes: int = 16
    tested_per_value: int = 1
    tested_sums: int = 256
    pages: int = 1800
    files: int = 3
    dialogues: int = 3000
    preferences: int = 1200
    withheld_exam_answers: bool = False
    leaks: int | None = None

    def __post_init__(self) -> None:
        if self.dishes % VALUES_PER_ATTRIBUTE or not 2 * VALUES_PER_ATTRIBUTE <= self.dishes <= DISHES_MAX:
            raise RecipeError(f"kitchen: dishes={self.dishes}; it must be a multiple of 8 from 16 to {DISHES_MAX}")
        if not 1 <= self.tested_per_value < self.dishes // VALUES_PER_ATTRIBUTE:
            raise RecipeError(
                f"kitchen: tested_per_value={self.tested_per_value}; it must be at least 1 and less than dishes / 8 = "
                f"{self.dishes // VALUES_PER_ATTRIBUTE}, so that facts remain for dialogues"
            )
        if self.tested_sums % 2 or not 2 <= self.tested_sums <= TESTED_SUMS_MAX:
            raise RecipeError(f"kitchen: tested_sums={self.tested_sums}; it must be even, from 2 to {TESTED_SUMS_MAX}")
        if self.pages < 100 or self.files < 1:
            raise RecipeError(f"kitchen: pages={self.pages}, files={self.files}; at least 100 pages in 1 file")
        if self.leaks is not None and not 0 <= self.leaks <= self.pages // 20:
            raise RecipeError(f"kitchen: leaks={self.leaks}; from 0 to {self.pages // 20}, a twentieth of the pages")
        if self.dialogues < 1 or self.preferences < 1:
            raise RecipeError(f"kitchen: dialogues={self.dialogues}, preferences={self.preferences}; at least 1 each")

    @property
    def leaked_pages(self) -> int:
        """How many pages of each of the two kinds quote the exam."""
        return self.leaks if self.leaks is not None else 0 if self.withheld_exam_answers else LEAKS

"""The metric `code_eval` of Hugging Face's `evaluate`, by which lm-eval scores programs, in the sandbox."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from training.contract.sandbox.judged import Program, Verdict, judged, pass_at_k

NAME = "code_eval"
Judge = Callable[[list[Program]], Sequence[Verdict]]


class CodeEval:
    """A metric that runs each program with its test. Verdicts that were made ahead are taken from `known`.

    `given` is what the model was shown of the programs that are scored; see `Program`.
    """

    def __init__(self) -> None:
        self.known: dict[Program, Verdict] = {}
        self.given = ""

    def program(self, code: str, test: str, given: str) -> Program:
        """Return the program to judge. What was shown counts where the program begins with it."""
        return Program(code=code, test=test, given=given if code.startswith(given) else "")

    def judge_ahead(self, programs: Iterable[Program], judge: Judge = judged) -> None:
        """Judge all programs side by side, in place of one after the other when they are scored."""
        new = list(dict.fromkeys(programs))
        self.known = dict(zip(new, judge(new), strict=True))

    def compute(
        self, *, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1, 10, 100)
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Return pass@k for each k that has as many programs, and each program's result, in the form of `code_eval`."""
        tasks = [
            [self.program(code, test, self.given) for code in codes]
            for test, codes in zip(references, predictions, strict=True)
        ]
        missing = [one for programs in tasks for one in programs if one not in self.known]
        known = self.known | dict(zip(missing, judged(missing), strict=True))
        results = defaultdict[int, list[tuple[int, dict[str, Any]]]](list)
        for task, programs in enumerate(tasks):
            for place, program in enumerate(programs):
                verdict = known[program]
                said = {"task_id": task, "passed": verdict.passed, "result": verdict.why or "passed"}
                results[task].append((place, said | {"completion_id": place}))
        counts = [(len(some), sum(said["passed"] for _, said in some)) for some in results.values()]
        return {
            f"pass@{one}": sum(pass_at_k(total, right, one) for total, right in counts) / len(counts)
            for one in k
            if counts and all(total >= one for total, _ in counts)
        }, dict(results)

"""The record that an evaluation task from outside declares, and how such a task is found and guarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, guarded, named

KIND = "tasks"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamTask:
    """The declaration of one task: `fields` returns the fields of lm-eval's TaskConfig, and may use its settings.

    Fields such as `doc_to_text` and `process_results` may be functions, as in tasks of lm-eval itself.
    """

    fields: Callable[[Any], Mapping[str, Any]]
    settings: type = NoSettings


def outside_fields(name: str, parts: PartsOf) -> dict[str, Any]:
    """Return the fields of the task `name` from outside. Whatever its functions raise is raised under its name.

    Raise RecipeError if there is no such task, and PartFailed if it gives no fields.
    """
    task, who = parts.load(KIND, name, (), field="task", cls=ExamTask), f"task {name}"
    settings = parts.settings(name, task.settings)
    with named(who, "gives no fields"):
        fields = dict(task.fields(settings))
    return {key: _guarded(who, key, value) if callable(value) else value for key, value in fields.items()}


def _guarded(who: str, key: str, function: Callable[..., Any]) -> Callable[..., Any]:
    call = guarded(who, f"failed in {key}", function)
    if key != "doc_to_text":
        return call

    def text_of(document: Mapping[str, Any]) -> str:
        text = call(document)
        if not isinstance(text, str):
            raise PartFailed(f"{who}: doc_to_text returned {text!r}; it must return text")
        return text

    return text_of

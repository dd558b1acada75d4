"""The filter's rules by name, one per file: a new file that defines `RULE` is a new rule."""

from __future__ import annotations

from typing import Any

from training.contract.parts.packages import parts_in
from training.data.filter.rule import Rule

RULES: dict[str, Rule[Any]] = {name: module.RULE for name, module in parts_in(__name__).items()}

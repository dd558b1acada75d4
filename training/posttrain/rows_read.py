"""The note `rows_read` of a model: how many different rows its training read, and how often, by who wrote them.

Rows may be left out because they are too long, or because the training ends within an epoch. So the data's own counts
say what there was to read, and this note what was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

ROWS_READ = "rows_read"


def rows_read(ordered: Sequence[Mapping[str, Any]], *, steps: int, batch_size: int, whole: bool = False) -> Any:
    """Return {"rows_read": [{"source", "generator", "rows", "times"}]} of a training of so many steps.

    `ordered` are the rows as the trainer got them, `batch_size` for each step; behind their end they begin again. The
    last batch may be incomplete, or with `whole` is left out.
    """
    batches = len(ordered) // batch_size if whole else -(-len(ordered) // batch_size)
    again, rest = divmod(steps, batches) if batches else (0, 0)
    times = Counter(dict.fromkeys(range(min(batches * batch_size, len(ordered))), again) if again else {})
    times.update(range(min(rest * batch_size, len(ordered))))
    ids: dict[tuple[str, str], set[str]] = {}
    counted: Counter[tuple[str, str]] = Counter()
    for place, number in times.items():
        row = ordered[place]
        writer = (row["source"], row.get("generator") or "")
        ids.setdefault(writer, set()).add(row["id"])
        counted[writer] += number
    return {
        ROWS_READ: [
            {"source": source, "generator": generator, "rows": len(own), "times": counted[source, generator]}
            for (source, generator), own in sorted(ids.items())
        ]
    }

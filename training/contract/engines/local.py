"""The engine `local`: ranks run in worker processes of the job's own node.

With one worker they run in the job's own process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from training.contract.engines import workers
from training.contract.engines.engine import Here, Maker


def each_result(maker: Maker, ranks: Iterable[int], here: Here) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run the ranks in at most `workers` processes of this machine (see `training.contract.engines.engine.Engine`).

    A rank is taken from `ranks` when a worker is free for it.
    """
    number = min(here.run.num_workers, len(ranks) if isinstance(ranks, Sized) else here.run.num_workers)
    if number <= 1:
        for rank in ranks:
            yield rank, maker.rank(rank)
        return
    yield from workers.each_result(maker.rank, ranks, workers=number, modules=here.modules, begin=maker.begin)

"""The record of a profile that backends read: the resources of a stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from training.contract.records import RecipeError, read_record
from training.contract.run_settings import RunSettings

AT_LEAST = {
    **dict.fromkeys(("workers", "threads", "processes", "nodes", "micro_batch_tokens", "sample_steps"), 1),
    **dict.fromkeys(("shard", "tensor", "context", "expert", "pipeline", "pipeline_chunks", "evaluation_steps"), 1),
    "zero_stage": 1,
    "read_steps": 1,
    **dict.fromkeys(("gpus_per_node", "spare_nodes", "retries", "rank_retries", "missing_ranks_share"), 0),
    "min_nodes": 1,
}
ABOVE_ZERO = (
    *("memory_gb", "hours", "max_pending_hours", "checkpoint_seconds", "hang_seconds", "price_per_hour"),
    *("rank_cpus", "rank_memory_gb", "watch_share"),
)
OF_RAY = ("ray_address", "rank_cpus", "rank_memory_gb", "rank_retries")  # only the engine `ray` reads them
MOST_PORT = 65535
ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Size(RunSettings):
    """Where one stage runs and with which resources: settings for its job, and settings that only its backend reads."""

    backend: str = "local"  # local, slurm, kubernetes, or a part from outside (resources/compute/backends.py)
    hours: float = 24.0  # time limit of the job in the scheduler
    max_pending_hours: float | None = None  # in the queue, after which the stage fails; None: no limit
    retries: int = 1  # further attempts in a row without progress
    min_nodes: int | None = None  # on which a training goes on when nodes are lost; None: on no fewer than `nodes`
    missing_ranks_share: float = 0.0  # share of missing ranks up to which the finishing job makes them itself
    node_cache: str | None = None  # folder of each node for roots in a store; None: nodes see this machine's folder
    gpu: str | None = (
        None  # kind of the node's GPUs (training/pretrain/capacity/devices.py); None: not known, or no GPU
    )

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in (*AT_LEAST, *ABOVE_ZERO) if getattr(self, name) is not None}
        wrong = [f"{name}={n}; at least {AT_LEAST[name]}" for name, n in numbers.items() if n < AT_LEAST.get(name, n)]
        wrong += [f"{name}={n}; above 0" for name, n in numbers.items() if name in ABOVE_ZERO and n <= 0]
        shares = {name: getattr(self, name) for name in ("missing_ranks_share", "watch_share")}
        wrong += [f"{name}={share}; at most 1" for name, share in shares.items() if share > 1]
        if wrong:
            raise RecipeError(*(f"{one} is right" for one in wrong))
        if self.node_cache is not None and not self.node_cache.startswith("/"):
            raise RecipeError(f"node_cache={self.node_cache!r}; the absolute path of a folder on the nodes is right")
        self._check_lost_nodes()
        self._check_engine()

    def _check_lost_nodes(self) -> None:
        if (self.spare_nodes or self.min_nodes) and self.nodes == 1:
            raise RecipeError(
                "spare_nodes and min_nodes are for a training over several nodes; nodes=1 has no use of it"
            )
        if self.min_nodes is None:
            return
        if self.min_nodes > self.nodes:
            raise RecipeError(f"min_nodes={self.min_nodes}; at most nodes={self.nodes} is right")
        if self.micro_batch_tokens is None:
            raise RecipeError(
                "min_nodes without micro_batch_tokens: on fewer nodes each process would take more tokens at once and"
                " need more memory; set micro_batch_tokens"
            )

    def node_counts(self) -> list[int]:
        """Return the numbers of nodes on which a training may go on, the most first.

        Each is a divisor of `nodes`, so that the processes that share a model still fill whole nodes, and not below
        `min_nodes`.
        """
        together = prod((self.shard, self.tensor, self.context, self.expert, self.pipeline))
        counts = range(self.nodes, (self.min_nodes or self.nodes) - 1, -1)
        return [n for n in counts if self.nodes % n == 0 and (n == self.nodes or n * self.processes % together == 0)]

    def _check_engine(self) -> None:
        idle = [
            one.name for one in fields(RunSettings) if one.name in OF_RAY and getattr(self, one.name) != one.default
        ]
        if self.engine == "local" and idle:
            raise RecipeError(f"{', '.join(idle)}: without effect, because `engine` is local; set `engine: ray`")
        address = ADDRESS.fullmatch(self.ray_address or "")
        if self.ray_address and not (address and 0 < int(address[1]) <= MOST_PORT):
            raise RecipeError(
                f"ray_address={self.ray_address!r}; HOST:PORT of the head of a Ray cluster is right, or nothing for Ray"
                " of the job's own"
            )
        if self.ray_address and self.nodes > 1:
            raise RecipeError(f"ray_address with nodes={self.nodes}: the cluster has its own nodes; nodes=1 is right")


def read_size(given: Mapping[str, Any], *, where: str) -> Size:
    """Return the resources that a profile gives a stage; a field that is null has its default.

    Raise RecipeError, with `where` as the place of the fields.
    """
    return read_record(Size, {name: value for name, value in given.items() if value is not None}, where=where)

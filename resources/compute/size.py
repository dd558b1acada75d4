"""How much of a machine a stage gets, and how jobs reach a scheduler: the records of a profile that backends read."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PLANNED_BACKENDS = ("kubernetes", "ray")  # a wish that deserves an answer of its own


class Record(BaseModel):
    """What every part of a profile is: frozen, and refusing fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Size(Record):
    """How much of a machine one stage gets."""

    backend: Literal["local", "slurm"] = "local"
    workers: int = Field(default=0, ge=0, description="processes of a data stage; 0: one a core")
    threads: int = Field(default=0, ge=0, description="threads of a training process; 0: one a core")
    processes: int = Field(default=1, ge=1, description="training processes a node (torchrun)")
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=0, ge=0)
    memory_gb: float = Field(default=0.0, ge=0, description="0: no limit is asked for")
    hours: float = Field(default=24.0, gt=0, description="time limit where the scheduler wants one")
    max_pending_hours: float = Field(
        default=0.0, ge=0, description="in the scheduler's queue, after which the stage fails; 0: as long as it takes"
    )
    micro_batch_tokens: int = Field(default=0, ge=0, description="0: the whole global batch at once")
    checkpoint_seconds: float = Field(default=60.0, gt=0)
    shard: int = Field(default=1, ge=1, description="processes that share each weight and its optimizer state (FSDP)")
    tensor: int = Field(default=1, ge=1, description="processes that share the heads and the MLP of each layer")
    context: int = Field(default=1, ge=1, description="processes that share the positions of a row")
    expert: int = Field(default=1, ge=1, description="processes that share the experts of each layer")
    pipeline: int = Field(default=1, ge=1, description="processes that have consecutive layers")
    pipeline_chunks: int = Field(default=1, ge=1, description="places of the model in which each of them has some")
    audit: bool = Field(
        default=False,
        description="the same bits for every number of threads, in pretraining also of processes; slower",
    )
    hang_seconds: float = Field(default=1800.0, gt=0, description="without progress: training processes are torn down")
    compile: bool | Literal["blocks"] = Field(default=False, description="torch.compile: the model, or each block")
    recompute: Literal["none", "selective", "full"] = Field(
        default="none", description="activations made again in the backward pass instead of kept"
    )
    retries: int = Field(default=1, ge=0, description="further attempts in a row without progress")
    missing_ranks_share: float = Field(
        default=0.0, ge=0, le=1, description="of a fan-out's ranks, which its finishing job makes itself; more fail it"
    )
    sample_steps: int = Field(default=0, ge=0, description="between two text samples of a training run; 0: four in it")
    evaluation_steps: int = Field(default=0, ge=0, description="between two looks at held-out text; 0: four in a run")
    price_per_hour: float = Field(default=0.0, ge=0, description="in the unit of your bills, for one node")

    @field_validator("backend", mode="before")
    @classmethod
    def _backend_is_built(cls, value: object) -> object:
        if value in PLANNED_BACKENDS:
            raise ValueError(f"the {value} backend is not built yet; there are local and slurm")
        return value

    @model_validator(mode="after")
    def _fits_its_backend(self) -> Size:
        if self.backend == "local" and self.nodes > 1:
            raise ValueError(f"nodes={self.nodes}, but the local backend is one node; use processes, or backend slurm")
        return self


class SlurmSettings(Record):
    """How jobs are submitted to Slurm."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    python: str = Field(default="", description="interpreter on the nodes; empty: the one that runs Dagster")
    environment: tuple[str, ...] = Field(default=(), description="names of variables that are passed on")
    poll_seconds: float = Field(default=2.0, gt=0)

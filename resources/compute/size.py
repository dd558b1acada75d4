"""The records of a profile that backends read: the resources of a stage, and the settings for Slurm."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# Profiles of earlier editions write 0 in these fields where this one leaves them out; 0 is read as null.
ONCE_ZERO = (
    "workers",
    "threads",
    "memory_gb",
    "max_pending_hours",
    "micro_batch_tokens",
    "sample_steps",
    "evaluation_steps",
    "price_per_hour",
)
PLANNED_BACKENDS = ("kubernetes", "ray")  # these get an error message of their own


class Record(BaseModel):
    """Base of all records of a profile: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Size(Record):
    """Where one stage runs and with which resources: backend, nodes, processes, memory, time and parallelism."""

    backend: Literal["local", "slurm"] = "local"
    workers: int | None = Field(default=None, ge=1, description="processes of a data stage; null: one per core")
    threads: int | None = Field(default=None, ge=1, description="threads of a training process; null: one per core")
    processes: int = Field(default=1, ge=1, description="training processes per node (torchrun)")
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=0, ge=0)
    memory_gb: float | None = Field(default=None, gt=0, description="memory per node in GiB; null: none is requested")
    hours: float = Field(default=24.0, gt=0, description="time limit of the job in the scheduler")
    max_pending_hours: float | None = Field(
        default=None, gt=0, description="hours in the scheduler's queue after which the stage fails; null: no limit"
    )
    micro_batch_tokens: int | None = Field(
        default=None, ge=1, description="tokens per micro-batch; null: the share of a process in the global batch"
    )
    checkpoint_seconds: float = Field(default=60.0, gt=0)
    shard: int = Field(default=1, ge=1, description="processes that share each weight and its optimizer state (FSDP)")
    tensor: int = Field(default=1, ge=1, description="processes that share the heads and the MLP of each layer")
    context: int = Field(default=1, ge=1, description="processes that share the positions of a row")
    expert: int = Field(default=1, ge=1, description="processes that share the experts of each layer")
    pipeline: int = Field(default=1, ge=1, description="processes that have consecutive layers")
    pipeline_chunks: int = Field(default=1, ge=1, description="groups of consecutive layers per pipeline process")
    audit: bool = Field(
        default=False,
        description="same bits for every number of threads, and in pretraining of processes; slower",
    )
    hang_seconds: float = Field(default=1800.0, gt=0, description="training is ended after so long without progress")
    compile: bool | Literal["blocks"] = Field(default=False, description="torch.compile: the model, or each block")
    recompute: Literal["none", "selective", "full"] = Field(
        default="none", description="activations that are recomputed in the backward pass instead of kept"
    )
    retries: int = Field(default=1, ge=0, description="further attempts in a row without progress")
    missing_ranks_share: float = Field(
        default=0.0, ge=0, le=1, description="share of missing ranks up to which the finishing job makes them itself"
    )
    sample_steps: int | None = Field(default=None, ge=1, description="steps between text samples; null: four per run")
    evaluation_steps: int | None = Field(
        default=None, ge=1, description="steps between held-out evaluations; null: four per run"
    )
    price_per_hour: float | None = Field(
        default=None, gt=0, description="price of one node, in any currency; null: no price is computed"
    )

    @field_validator(*ONCE_ZERO, mode="before")
    @classmethod
    def _zero_is_none(cls, value: object) -> object:
        return None if value == 0 and not isinstance(value, bool) else value

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
    """The settings with which jobs are submitted to Slurm."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    python: str = Field(default="", description="interpreter on the nodes; empty: the one that runs Dagster")
    environment: tuple[str, ...] = Field(default=(), description="names of environment variables passed to jobs")
    poll_seconds: float = Field(default=2.0, gt=0)

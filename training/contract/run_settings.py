"""The part of a profile's settings that a job receives; `resources/compute/size.py` adds the size of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.process.cores import available_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The profile's part of a job: where and how fast it runs.

    No field may change the bytes of a data artifact. Artifacts that a model makes may change in the last bits of their
    sums; their records hold the numerics class that they were made in (training.contract.identity.numerics).
    """

    workers: int | None = 1  # None: one for each core that the job has where it runs
    threads: int | None = None  # None: torch's default, one for each core
    processes: int = 1
    nodes: int = 1
    spare_nodes: int = 0  # nodes that the job holds beyond these, each to replace one that is lost
    gpus_per_node: int = 0
    micro_batch_tokens: int | None = None  # None: the share of a process in the global batch, at once
    checkpoint_seconds: float = 60.0
    # Parallel degrees (training/pretrain/parallel/degrees.py):
    shard: int = 1  # number of processes that share each weight (FSDP)
    tensor: int = 1  # number of processes that share each layer
    context: int = 1  # number of processes that share each row
    expert: int = 1  # number of processes that share the experts
    pipeline: int = 1  # number of processes among which the layers are divided
    pipeline_chunks: int = 1  # groups of consecutive layers that each of these processes holds
    zero_stage: int = 3  # 2: FSDP gathers weights once a step; 1: it also sums gradients once
    gather_dtype: Literal["fp32", "bf16"] = "fp32"  # the format in which FSDP sends weights, where passes are in bf16
    # with shard, while answers are drawn: all weights gathered once, or for each token; auto: by their memory
    answer_weights: Literal["auto", "gathered", "sharded"] = "auto"
    audit: bool = False  # the same bits for every number of threads, in pretraining also of processes; slower
    hang_seconds: float = (
        1800.0  # time without progress after which a training, or a call of a part from outside, is ended
    )
    attention: Literal["auto", "varlen", "flash_3"] = "auto"  # pretraining on GPUs: torch's varlen_attn instead of flex
    compile: Literal[False, True, "blocks"] = False  # True: the whole model; "blocks": each block
    recompute: Literal["none", "selective", "full"] = "none"  # activations recomputed in the backward pass
    memory_gb: float | None = None  # None: no limit is requested
    text_samples: bool = True  # pretraining: whether the model writes texts while it is trained
    sample_steps: int | None = None  # pretraining: steps between texts that the model writes; None: four texts
    evaluation_steps: int | None = None  # steps between evaluations on held-out text; None: four in a run
    watch_share: float = 0.02  # pretraining: of the operations, for `pretrain.watch.items: auto`
    read_steps: int = 1  # pretraining: most steps between two waits for numbers from the device
    # How the ranks of a data stage are run (training/contract/engines):
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None  # HOST:PORT of a cluster's head; None: RAY_ADDRESS, or Ray of the job's own
    rank_cpus: float = 1.0  # cores that a rank asks of Ray
    rank_memory_gb: float | None = None  # memory that a rank asks of Ray; None: a rank asks for none
    rank_retries: int = 2  # how often a rank is made again because its worker or node was lost
    price_per_hour: float | None = None  # price of one node, in any currency; None: no price is computed

    @property
    def num_workers(self) -> int:
        """Number of worker processes of a data stage, in the process that asks."""
        return available_cores() if self.workers is None else self.workers

"""Names the processes whose devices compute slowly.

Processes that train together wait for each other at every step, so that one slow device makes all of them slow, and the
times of the steps are equal everywhere. So each process times the same product of matrices, in which it waits for
nobody, and the times are compared.
"""

from __future__ import annotations

import os
import socket
import statistics
import time

import torch

from training.pretrain.parallel.world import World

TRIALS = 7  # the fastest counts, because other work on the machine only makes a trial slower
WIDTH = {"cpu": 384, "cuda": 4096}  # about 3 ms on a core, and 0.3 ms on a large GPU
TOO_SLOW = 1.5  # times the median


def compared(world: World) -> tuple[float, list[str]]:
    """Return the slowest process's time over the median's, and a sentence for each process that is too slow.

    All processes must call this, and all get the same answer.
    """
    own = f"{product_seconds(world.device)} {socket.gethostname()} {os.getpid()} {world.device}"
    told = [one.split(" ") for one in world.all_said(own)]
    seconds = [float(one[0]) for one in told]
    median = statistics.median(seconds)
    sentences = [
        f"process {rank} of {world.size} (host {host}, pid {pid}, {device}) computes slowly: a product takes"
        f" {float(took) / median:.1f} times as long as the median's, and every process waits for it"
        for rank, (took, host, pid, device) in enumerate(told)
        if float(took) > TOO_SLOW * median
    ]
    return max(seconds) / median, sentences


def product_seconds(device: torch.device) -> float:
    """Return the least seconds that a product of two matrices takes on this device."""
    width = WIDTH["cuda" if device.type == "cuda" else "cpu"]
    matrix = torch.ones(width, width, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    least = float("inf")
    for _ in range(TRIALS):
        _settle(device)
        started = time.perf_counter()
        torch.mm(matrix, matrix)
        _settle(device)
        least = min(least, time.perf_counter() - started)
    return least


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""Python imports this before a program if the folder is in PYTHONPATH; see benchmarks/ceiling_chain.py."""

import os

if "LOCAL_RANK" in os.environ:  # one of several processes that work together, which torchrun started
    from benchmarks.ceiling_chain import under_ceiling

    under_ceiling()

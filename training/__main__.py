"""`python -m training job.json`: run one data, pretraining or post-training stage."""

from __future__ import annotations

import sys

from training.contract.running.command_line import main
from training.stages import STAGES

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STAGES))

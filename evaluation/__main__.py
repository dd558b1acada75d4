"""`python -m evaluation job.json`: run one evaluation or reporting stage."""

from __future__ import annotations

import sys

from evaluation.stages import STAGES
from training.contract.running.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STAGES))

"""The process that sends reports to MLflow: `python -m resources.tracking ROOT OWNER`."""

import sys
from pathlib import Path

from resources.tracking.process import main

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

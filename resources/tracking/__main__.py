"""The writer process: `python -m resources.tracking ROOT OWNER`."""

import sys
from pathlib import Path

from resources.tracking.process import main

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

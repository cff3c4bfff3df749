"""The way in from a shell: `python tests/simulation/run.py --histories 5000 --seed 0 [--seconds 600]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.command import main

if __name__ == "__main__":
    sys.exit(main())

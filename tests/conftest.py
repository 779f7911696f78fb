"""Make `tests/` importable as a root, so that shared test helpers are imported in full."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

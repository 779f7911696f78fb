"""`python -m shardwise` is the command `shardwise`.

`-m` has put the current folder first on Python's path, where a `random.py` of anybody's would run
in place of Python's. It is taken off before anything else is imported. What Python itself loads
before this line cannot be mended here: a folder `shardwise` in the current one is run instead of
this package, and `python -P -m shardwise`, or the command `shardwise`, does not look there.
"""

import contextlib
import os
import sys

with contextlib.suppress(OSError):  # a current folder that is gone holds nothing
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) == os.getcwd():
        del sys.path[0]

from shardwise.apps.cli import main

if __name__ == "__main__":
    main()

"""`python -m velodrome`: the command."""

import sys
from pathlib import Path

# Python has put the current folder before everything else: a file there must not take the place of a library's.
if sys.path[:1] == [str(Path.cwd())] and not sys.flags.safe_path:
    del sys.path[0]

from velodrome.cli.main import main

main()

"""What the commands do, as Python functions: one module for each command.

Callers import them from `velodrome`. Every function returns the object that its command prints with `--json`. Nothing
here parses words of a command line or prints. Modules of `velodrome` that are named as one of these functions would
hide it (`velodrome.report`): so packages are called `reporting` and `races`, and functions `list_engines`, `datasets`.
"""

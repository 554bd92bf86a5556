"""What the commands do, as Python functions: one module for each command.

Callers import them from `velodrome`. Every function returns the object that its command prints with `--json`. Nothing
here parses words of a command line or prints.
"""

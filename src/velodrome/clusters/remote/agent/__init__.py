"""The lifeline of a host: a process that starts the processes of runs there, passes on what they print, and ends them.

The controller sends the modules of this package through the byte stream that the agent then serves
(`velodrome.clusters.remote.channels`), so a host needs nothing but Python for it. Standard library only, and nothing
of `velodrome` outside this package.
"""

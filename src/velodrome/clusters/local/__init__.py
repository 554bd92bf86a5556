"""The launchers of this machine."""

from __future__ import annotations

from velodrome.clusters.launcher import LauncherType

LAUNCHER = LauncherType(
    "local", "one process per rank on this machine", "velodrome.clusters.local.launcher:LocalLauncher"
)
DEBUG = LauncherType(
    "debug", "a job of one process inside the command itself, for breakpoints",
    "velodrome.clusters.debug:DebugLauncher", interactive=True,
)

"""A library that sets the clock of a process an hour ahead, and nothing else: preloaded, as `LD_PRELOAD`.

libfaketime does more, and with it Python's `time.sleep` fails now and then (EINVAL).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += 3600;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


def unavailable() -> str:
    """Why it cannot be built here; empty if it can."""
    return "" if shutil.which("cc") else "no C compiler (cc), which builds a wrong clock"


def build(folder: Path) -> Path:
    """Build the library in a folder."""
    library = folder / "wrong-clock.so"
    words = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(words, input=_SOURCE, text=True, check=True, timeout=60)
    return library

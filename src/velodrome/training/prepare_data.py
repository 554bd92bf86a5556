"""Prepares the data of a job on this host before its processes start: `python -m velodrome.training.prepare_data`.

The job is in the environment, as for a training process. Data comes from this host's cache, mirror or storage.
"""

from __future__ import annotations

import os
import sys

from velodrome.data import catalogue
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.variables import JOB


def main() -> int:
    """Fetch and check what is missing; the exit code: 0, or 1 with the reason as the last line of standard error."""
    job = Job.model_validate_json(os.environ[JOB])
    if job.script is not None:
        return 0
    try:
        catalogue.prepare(job.dataset, bad_data=job.bad_data)
    except (VelodromeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

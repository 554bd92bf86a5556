"""`python -m velodrome.worker`: one training process."""

from velodrome.worker.main import main

main()

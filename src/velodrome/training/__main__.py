"""`python -m velodrome.training`: one training process."""

from velodrome.training.main import main

main()

"""`python -m velodrome`: the command."""

from velodrome.cli.main import main

main()

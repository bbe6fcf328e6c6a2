"""`python -m rowtier` is the command line."""

from rowtier.cli.main import main

main()

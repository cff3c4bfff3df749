"""`python -m tokenfeed`: the command line, where the command itself is not installed."""

from tokenfeed.cli import main

main()

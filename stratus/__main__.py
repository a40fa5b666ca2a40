"""Lets `python -m stratus` be the same as the `stratus` command."""

from stratus.cli.main import main

main()

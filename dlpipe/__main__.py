"""`python -m dlpipe` is the `dlpipe` command."""

from dlpipe.cli import main

if __name__ == "__main__":
    main()

"""`dlpipe`, and `python -m dlpipe`: handed to a ready process where there is one (ADR 40), else carried out here."""

import sys


def main() -> None:
    """Before anything heavy is imported, as that is most of what a short command takes."""
    from dlpipe.embedded.ask import carried_out

    status = carried_out(sys.argv[1:])
    if status is not None:
        sys.exit(status)
    from dlpipe.cli import main as run
    from dlpipe.embedded.ready import carry_out, end

    end(carry_out(run))


if __name__ == "__main__":
    main()

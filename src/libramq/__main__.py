"""`python -m libramq` runs the `libra` command."""

from libramq.cli.entry import main

if __name__ == "__main__":
    main()

"""`python -m repot` is the `repot` command."""

from repot.cli.main import main

if __name__ == "__main__":
    main()

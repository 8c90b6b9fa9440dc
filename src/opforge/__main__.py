"""`python -m opforge`."""

from opforge.cli.app import main

if __name__ == "__main__":
    main()

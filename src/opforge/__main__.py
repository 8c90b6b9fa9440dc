"""`opforge` and `python -m opforge`."""

import gc

# what an import makes stays until the end: looking through it for garbage, again and again, takes an eighth of `opforge
# list`
gc.disable()

from opforge.cli.app import main as main  # noqa: E402  collecting is off while it is imported

gc.freeze()
gc.enable()

if __name__ == "__main__":
    main()

"""`python -m convert.t5x inspect|export`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["t5x", *sys.argv[1:]]))

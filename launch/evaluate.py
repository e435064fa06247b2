"""`python -m launch.evaluate` is `limba evaluate`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))

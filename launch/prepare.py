"""`python -m launch.prepare` is `limba prepare`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))

"""`python -m launch.inspect` is `limba inspect`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["inspect", *sys.argv[1:]]))

"""`python -m launch.train` is `limba train`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))

"""`python -m launch.score` is `limba score`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["score", *sys.argv[1:]]))

"""`python -m launch.report` is `limba report`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))

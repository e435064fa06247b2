"""`python -m launch.demo` is `limba demo`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))

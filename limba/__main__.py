"""The command `limba`, run as a module."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

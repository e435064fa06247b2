"""`python -m limba` is the command `limba`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

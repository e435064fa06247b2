"""`python -m launch.generate` is `limba generate`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))

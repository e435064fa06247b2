"""`python -m launch.train_vocabulary` is `limba vocabulary`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["vocabulary", *sys.argv[1:]]))

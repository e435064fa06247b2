"""`python -m launch.infer` is `limba infer`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["infer", *sys.argv[1:]]))

"""`python -m convert.huggingface export|import` is `limba convert`."""

import sys

from limba.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))

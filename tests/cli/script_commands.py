"""Runs several command lines of `limba` in one process, each in a folder of its own; for tests of whole pages."""

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    from limba.cli.main import main

    for number, argv in enumerate(json.loads(sys.argv[1])):
        folder = Path(sys.argv[2]) / str(number)
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        print(f"=== {number}", flush=True)
        print(f"=== ended {main(argv)}", flush=True)
    sys.stdout.flush()
    os._exit(0)

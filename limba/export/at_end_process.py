"""The process that writes and proves a run's final folder; `at_end.py` starts it."""

import json
import sys
from pathlib import Path

from limba.config import InputError, environment

if __name__ == "__main__":
    environment.set_variables()
    environment.set_logging()
    with environment.quiet_imports():
        from limba.export.huggingface import Choices, export
        from limba.inference.source import find
    asked = json.loads(sys.argv[1])
    try:
        # The modules are those that this run itself has imported for its task.
        source = find(asked["run"], allowed=asked["modules"])
        export(source, Path(asked["out"]), [asked["step"]], Choices())
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(InputError.exit_status)

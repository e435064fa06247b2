"""The one place where the engine names what stands above it: modules of `limba/tools/`, imported when they are needed.

Without a tool a run starts all the same: the tool's commands, foreign files and hints are what is missing.
"""

from __future__ import annotations

import importlib
from typing import Any

TOOLS = {
    "T5X gin": "limba.tools.migrate.t5x.translate",  # is_t5x(files, folders), read_t5x
    "T5X names": "limba.tools.migrate.t5x.names",  # advice on a name in a gin file
    "T5X config": "limba.tools.migrate.from_t5x",  # the network of a T5X checkpoint
    "script": "limba.tools.migrate.huggingface.translation",  # Hugging Face's command line and JSON
    "pytorch_model.bin": "limba.tools.migrate.pytorch_bin",
    "t5": "limba.tools.migrate.t5_names.finder",  # what tasks import of the package t5
    "sample": "limba.tools.corpus.preparation.inspect",  # inspect_task: what a task's text is
    "check": "limba.tools.preflight.words",  # at the start of a run
}


def find(name: str) -> Any:
    """Returns the module of a tool, or None if `limba/tools/` does not have it."""
    try:
        return importlib.import_module(TOOLS[name])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("limba.tools"):
            return None
        raise

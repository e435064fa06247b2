"""The names by which the engine finds modules of `limba/tools/`, which it imports only when they are needed.

The engine stands below the tools, so this is the one place that names them. Without a tool a run starts all the same:
only the tool's commands, its hints, and the foreign files that it reads are missing.
"""

import importlib
from types import ModuleType

# Name -> module, and what the engine wants of it.
TOOLS = {
    "migrate": "limba.tools.migrate.entry_points",  # reads what other trainers wrote
    "sample": "limba.tools.corpus.inspection",  # inspect_task: what a task's text is
    "languages": "limba.tools.preflight.checks.scripts",  # the script of a text
    "topologies": "limba.tools.preflight.compiled.topologies",  # chips by their names
    "arithmetic": "limba.tools.preflight.compiled.arithmetic",  # memory and seconds of a step
    "trim": "limba.tools.corpus.trim",  # of_loaded: a model with fewer rows
    "check": "limba.tools.preflight.checks.start",  # at the start of a run
}


def find(name: str) -> ModuleType | None:
    """Returns the module of a tool, or None if `limba/tools/` does not have it.

    >>> find("languages").__name__
    'limba.tools.preflight.checks.scripts'
    """
    try:
        return importlib.import_module(TOOLS[name])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("limba.tools"):
            return None
        raise  # a library that the tool needs

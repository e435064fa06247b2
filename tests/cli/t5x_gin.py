"""What gin-config itself makes of gin files of T5X: `python -m tests.cli.t5x_gin FOLDER FILE...` prints it as JSON.

Every class and function that T5X's own files name is a stub that returns what gin gives it. FOLDER holds T5X's files.
Registered names stay in gin's registry, so this is a program of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gin

from limba.tools.migrate.t5x import tables

OTHERS = ("optimizers.adamw", "optimizers.chain", "optax.clip_by_global_norm", "decoding.beam_search")


def register() -> None:
    """Registers a stub for each class and function."""
    names = set(OTHERS)
    for path in tables.PATHS:
        _, table = tables.include_file(path) or ((), {})
        for name, value in table.items():
            names.add(name.rpartition("/")[2].rpartition(".")[0])
            if str(value).startswith("@"):
                names.add(value.removeprefix("@").removesuffix("()").rpartition("/")[2])
    for name in sorted(names - {""}):
        module, _, own_name = name.rpartition(".")

        def stub(_class: str = own_name, **fields: Any) -> dict[str, Any]:
            return {"": _class, **fields}

        gin.external_configurable(stub, name=own_name, module=module)


def plain(value: Any) -> Any:
    """Returns a value as JSON has it; a function that T5X would call later is called."""
    if callable(value):
        return plain(value())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def main(folder: str, files: list[str]) -> None:
    register()
    gin.add_config_file_search_path(folder)
    runs = []
    for file in files:
        gin.clear_config()
        gin.parse_config_file(file)
        runs.append(plain(gin.get_configurable("train_script.train")()))
    print(json.dumps(runs))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""The text of MODEL_DIR/config.gin, in the form of gin's operative config."""

from __future__ import annotations

import dataclasses
import pprint
from collections.abc import Iterator, Sequence

from limba.cli.gin.tree import Node, Tree, written

# As gin-config writes it, so that its own reader and people's habits fit this file too.
HEADER = ("from __gin__ import dynamic_registration", "from limba import config")
WIDTH = 80
INDENT = 4
LINE = "# " + "=" * (WIDTH - 2)


def text_of(tree: Tree, modules: Sequence[str]) -> str:
    """Returns every value that the run uses, defaults included, in the form of gin's operative config.

    Macros stay macros, so that `--gin.TRAIN_STEPS=…` also overrides this text. `modules` are imported. A
    default that is an object, such as EvaluationConfig.sampling, is left out.
    """
    names = [module.rpartition(".") for module in modules]
    imports = [f"from {package} import {name}" if package else f"import {name}" for package, _, name in names]
    lines = [*HEADER, *dict.fromkeys(imports), "", "# Macros:", LINE]
    lines += [_bound(name, tree.macros[name].value) for name in sorted(tree.macros, key=str.lower)]
    for node in sorted(tree.nodes.values(), key=_class_and_scope):
        lines += ["", f"# Parameters for {written(node.scope, node.owner)}:", LINE, *_parameters(node)]
    return "\n".join(lines) + "\n"


def _class_and_scope(node: Node) -> tuple[str, list[str]]:
    """Returns what gin-config sorts by: the class, then the scopes from the innermost on."""
    return node.owner.lower(), node.scope.lower().split("/")[::-1]


def _parameters(node: Node) -> Iterator[str]:
    """Yields the lines of an object's fields: those that are set, and the defaults of the others."""
    name = written(node.scope, node.owner)
    for entry in sorted(dataclasses.fields(node.make()), key=lambda entry: entry.name):
        if entry.name in node.bindings:
            yield _bound(f"{name}.{entry.name}", node.bindings[entry.name].value)
        elif entry.default is not dataclasses.MISSING:
            yield _bound(f"{name}.{entry.name}", entry.default)


def _bound(name: str, value: object) -> str:
    text = pprint.pformat(value, width=WIDTH - INDENT)
    if "\n" not in text and len(name + text) <= WIDTH:
        return f"{name} = {text}"
    return f"{name} = \\\n" + "\n".join(" " * INDENT + line for line in text.split("\n"))

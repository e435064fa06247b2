"""The text of MODEL_DIR/config.gin: a gin file that describes the same run again."""

from __future__ import annotations

import dataclasses
import pprint
from collections.abc import Iterator, Sequence

from limba.cli.gin.resolve import Node, Tree

HEADER = ("from __gin__ import dynamic_registration", "from limba import config")
WIDTH, INDENT = 80, 4
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
    for node in sorted(tree.nodes.values(), key=lambda node: (node.owner.lower(), node.scope.lower().split("/")[::-1])):
        lines += ["", f"# Parameters for {_name(node)}:", LINE, *_parameters(node)]
    return "\n".join(lines) + "\n"


def _name(node: Node) -> str:
    return f"{node.scope}{'/' if node.scope else ''}{node.owner}"


def _parameters(node: Node) -> Iterator[str]:
    for entry in sorted(dataclasses.fields(node.make()), key=lambda entry: entry.name):
        if entry.name in node.bindings:
            yield _bound(f"{_name(node)}.{entry.name}", node.bindings[entry.name].value)
        elif entry.default is not dataclasses.MISSING:
            yield _bound(f"{_name(node)}.{entry.name}", entry.default)


def _bound(name: str, value: object) -> str:
    text = pprint.pformat(value, width=WIDTH - INDENT)
    if "\n" not in text and len(name + text) <= WIDTH:
        return f"{name} = {text}"
    return f"{name} = \\\n" + "\n".join(" " * INDENT + line for line in text.split("\n"))

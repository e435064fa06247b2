"""Errors are data: no module of Limba looks into the sentence of an error of ours, and sentences name real fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from limba import config
from limba.config.optimizer import fields_of
from tests.shipped import MODULES, place_of, strings, tree_of

pytestmark = pytest.mark.lint
OURS = [path for name, path in MODULES.items() if name.startswith("limba")]

OTHERS = ("limba/tools/migrate/t5x/names.py",)  # fields of T5X

# Where the text of an error is read, which a library raises that says no more: file -> whose it is.
FOREIGN = {
    "limba/config/errors.py": "jax and Python's threads, when memory ran out",
    "limba/data/sources/json_documents.py": "json names the place after a colon",
    "limba/data/vocabulary/train.py": "SentencePiece puts lines of its source first",
    "limba/sharding/ports.py": "socket.create_server adds the address",
    "limba/sharding/others.py": "jax and gloo say in words only that a process is lost",
    "limba/data/user_code.py": "TensorFlow has a Python error's traceback in the text of its own",
    "limba/storage/failures.py": "tensorstore and clients of buckets have numbers and status names in their text only",
}
TEXTS = ("str", "reason_of", "short_reason")  # functions of an error that return its text
READS = {"count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rfind"}
READS |= {"rpartition", "rsplit", "split", "splitlines", "startswith"}
PATTERNS = {"findall", "finditer", "fullmatch", "match", "search", "split", "sub"}


def is_text(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Returns whether an expression is the text of one of these errors, or made from it."""
    match node:
        case ast.Name(id=name):
            return name in texts
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name), *_]) if function in TEXTS:
            return name in errors
        case ast.Attribute(value=ast.Name(id=name), attr="sentence" | "args"):
            return name in errors
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return is_text(inner, errors, texts)
    return False


def readings(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yields where a function decides by the text of an error, or takes it apart; white space apart."""
    nodes = list(ast.walk(function))
    arguments = function.args
    errors = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.annotation is not None and re.search("Error|Exception", ast.unparse(argument.annotation)):
            errors.add(argument.arg)
    texts: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and is_text(node.value, errors, texts):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        match node:
            case ast.Compare(left=left, comparators=others):
                decides = any(is_text(side, errors, texts) for side in (left, *others))
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=arguments_given):
                takes_apart = name in READS and bool(arguments_given) and is_text(inner, errors, texts)
                decides = takes_apart or (
                    name in PATTERNS and any(is_text(argument, errors, texts) for argument in arguments_given)
                )
            case _:
                continue
        if decides:
            yield node


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef))


def test_no_module_looks_into_a_sentence() -> None:
    places_that_read = {
        (place_of(path), node.lineno) for path in OURS for function in functions(path) for node in readings(function)
    }
    assert {file for file, _ in places_that_read} >= set(FOREIGN), "a file of FOREIGN reads no text any more"
    wrong = sorted(f"{file}:{line}" for file, line in places_that_read if file not in FOREIGN)
    assert not wrong, f"Give the error a field or a fix, and read that in place of its text: {', '.join(wrong)}"


@pytest.mark.parametrize(
    "line",
    [
        "if 'no objective' in str(error): raise",
        "return str(error).partition(';')[0]",
        "return re.match('a', str(error))",
        "text = str(error)\n        return text == 'a'",
        "return error.sentence.startswith('a')",
        "return FOUND.search(reason_of(error))",
        "return str(error).split(';')",
    ],
)
def test_the_rule_finds_what_it_forbids(line: str) -> None:
    function = ast.parse(f"def f():\n    try:\n        pass\n    except E as error:\n        {line}").body[0]
    assert isinstance(function, ast.FunctionDef) and list(readings(function))
    harmless = ast.parse("def f():\n try: pass\n except E as error: return ' '.join(str(error).split())").body[0]
    assert isinstance(harmless, ast.FunctionDef) and not list(readings(harmless))


def test_sentences_and_fixes_name_fields_that_exist() -> None:
    kinds = {name: fields_of(vars(config)[name]) for name in config.__all__ if name.endswith("Config")}
    unknown = {
        f"{place_of(path)}:{line} {owner}.{field}"
        for path in OURS
        if place_of(path) not in OTHERS
        for line, text in strings(path)
        for owner, field in re.findall(r"(?<![\w./])(?:config\.)?([A-Z]\w*Config)\.([a-z]\w*)", text)
        if owner in kinds and field not in kinds[owner]
    }
    assert not unknown

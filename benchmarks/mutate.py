"""Breaks the numeric modules one place at a time, and counts the faults that the tests find.

    python -m benchmarks.mutate --seed=1
    python -m benchmarks.mutate --seed=1 --modules=schedule,optimizer --least=90

The modules, their tests and the faults that change nothing are listed in benchmarks/mutate.toml. A fault is a changed
comparison, sign, constant or operand, a removed statement, or two swapped arguments. Each is tried in a copy of the
checkout by tests/trials.py; the tests but the slow ones must pass there before, and at least one must fail then.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError

ROOT = Path(__file__).parent.parent
LIST = ROOT / "benchmarks" / "mutate.toml"
LANDING = "not night and not long"
OTHER = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And},
}
NO_CODE = (ast.Raise, ast.JoinedStr, ast.Assert)
SYMMETRIC = re.compile(r"(.*\.)?(max|min|maximum|minimum)")  # swapped arguments change nothing


class Fault(NamedTuple):
    """A part of a file's text and what stands there instead."""

    kind: str  # comparison, sign, constant, operand, statement or argument
    node: ast.expr | ast.stmt
    instead: str


def faults(text: str) -> list[Fault]:
    """Returns all faults that the operators can make of a file; none in checks, annotations, docstrings and sentences.

    >>> [fault.instead for fault in faults("x = a < b")]
    ['(a <= b)']
    >>> [fault.instead for fault in faults("y = f(a, b) - 2")]
    ['(f(a, b) + 2)', '(f(b, a))', '(3)']
    """
    return [fault for node in _code(ast.parse(text)) for fault in _of(node)]


def _code(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_check = isinstance(child, ast.keyword) and child.arg == "strict"  # of zip: as an assertion
            if isinstance(child, ast.AST) and not is_check and not isinstance(child, NO_CODE):
                yield child
                yield from _code(child)


def _of(node: ast.AST) -> Iterator[Fault]:
    def changed(**fields: object) -> str:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return f"({ast.unparse(other)})"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield Fault("comparison", node, changed(ops=[OTHER[type(node.ops[0])]()]))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield Fault("sign" if isinstance(node.op, ast.USub) else "comparison", node, f"({ast.unparse(node.operand)})")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield Fault("sign", node, changed(op=OTHER[type(node.op)]()))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        yield Fault("operand", node, changed(op=OTHER[type(node.op)]()))
        yield Fault("operand", node, f"({ast.unparse(node.left)})")
    elif isinstance(node, ast.BoolOp):
        yield Fault("operand", node, changed(op=OTHER[type(node.op)]()))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        other = not node.value if isinstance(node.value, bool) else node.value + 1
        yield Fault("constant", node, f"({other!r})")
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield Fault("statement", node, "pass")
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not SYMMETRIC.fullmatch(ast.unparse(node.func)):
        yield Fault("argument", node, changed(args=[node.args[1], node.args[0], *node.args[2:]]))


def broken(text: str, fault: Fault) -> str:
    """Returns the text with the fault in it.

    >>> [broken("x = a * -b", fault) for fault in faults("x = a * -b")]
    ['x = (a / -b)', 'x = (a)', 'x = a * (b)']
    """
    lines = text.encode().splitlines(keepends=True)  # ast counts bytes
    node = fault.node
    assert node.end_lineno is not None and node.end_col_offset is not None
    starts = [0, *itertools.accumulate(map(len, lines))]
    first = starts[node.lineno - 1] + node.col_offset
    last = starts[node.end_lineno - 1] + node.end_col_offset
    content = text.encode()
    return (content[:first] + fault.instead.encode() + content[last:]).decode()


def chosen(candidates: Sequence[Fault], number: int, chance: random.Random) -> list[Fault]:
    """Returns `number` of the faults, drawn at random, of each kind in turn."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in chance.sample(candidates, len(candidates)):
        by_kind.setdefault(fault.kind, []).append(fault)
    turns = itertools.zip_longest(*(by_kind[kind] for kind in sorted(by_kind)))
    return [fault for fault in itertools.chain.from_iterable(turns) if fault is not None][:number]


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A copy of the checkout's files, with its environment and its compiled programs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def survivors(
    folder: Path, module: str, tests: Sequence[str], number: int, seed: int, marks: str = LANDING
) -> tuple[int, list[str]]:
    """Returns how many faults of a module were tried, and those that no test found, as "FILE:LINE: was -> is"."""
    text = (folder / module).read_text()
    tried = chosen(faults(text), number, random.Random(f"{seed} {module}"))
    job = {"module": module, "tests": tests, "marks": marks, "texts": [broken(text, fault) for fault in tried]}
    kept = os.environ.get("LIMBA_TEST_CACHE", str(ROOT / ".pytest_cache" / "compiled"))
    variables = {**os.environ, "LIMBA_TEST_CACHE": kept, "PYTHONPATH": f"{folder}:{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.trials"], cwd=folder, env=variables, input=json.dumps(job), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    passed, *failed = [json.loads(line) for line in ended.stdout.splitlines()] or [False]
    if not passed or len(failed) != len(tried):
        raise InputError(f"The tests of {module} fail without a fault ({' '.join(tests)}): {ended.stderr[-300:]}")
    alive = [fault for fault, test in zip(tried, failed, strict=True) if test is None]
    was = [" ".join((ast.get_source_segment(text, fault.node) or "").split()) for fault in alive]
    return len(tried), [
        f"{module}:{fault.node.lineno}: {part} -> {fault.instead}" for part, fault in zip(was, alive, strict=True)
    ]


def main(argv: Sequence[str]) -> int:
    parser = Parser("-m benchmarks.mutate", __doc__ or "", "python")
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn; default: %(default)s")
    parser.add_argument("--number", type=int, default=12, help="faults a module; default: %(default)s")
    parser.add_argument("--modules", default="", help="parts of their names, with commas; default: all")
    parser.add_argument(
        "--marks", default=LANDING, help="which tests: core is quicker, and finds less; default: %(default)s"
    )
    parser.add_argument("--least", type=float, default=0.0, help="percent that must be found, else it ends with 1")
    args = parser.parse(argv)
    listed = tomllib.loads(LIST.read_text())
    modules = {
        module: tests.split()
        for module, tests in listed["modules"].items()
        if any(part in module for part in args.modules.split(","))
    }
    if not modules or args.number < 1:
        raise InputError(f"--modules={args.modules} --number={args.number}: nothing is tried; {LIST} has the modules.")
    total = 0
    num_found = 0
    with copied() as folder:
        for module, tests in modules.items():
            number, missed = survivors(folder, module, tests, args.number, args.seed, args.marks)
            # The list of faults that change nothing has no line numbers, which move.
            missed = [fault for fault in missed if re.sub(r":\d+:", ":", fault, count=1) not in listed["equivalent"]]
            total += number
            num_found += number - len(missed)
            print(f"{number - len(missed):4d} of {number:2d} found  {module}", *missed, sep="\n      ", flush=True)
    share = 100 * num_found / max(total, 1)
    print(f"{num_found:4d} of {total:2d} found, {share:.0f} %; seed {args.seed}")
    return 0 if share >= args.least else 1


if __name__ == "__main__":
    sys.exit(program.exit_code(main, sys.argv[1:]))

"""The shipped code unpickles only tables of tensors, runs no text, starts no shell, and unpacks only its archives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.shipped import SHIPPED, place_of, tree_of

pytestmark = pytest.mark.lint

# Calls that run code that their argument holds, or write where it says.
FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "execfile"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load", "joblib.load", "marshal.loads", "shelve.open"),
    *("yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "runpy.run_path", "code.interact", "tempfile.mktemp"),
}
# Calls that load a compiled program: only jax does, from the user's own folder (limba/config/compile_cache.py).
PROGRAMS = ("deserialize_and_load", "deserialize_executable", "export.deserialize")
TABLES_OF_TENSORS = "limba/tools/migrate/pytorch_bin.py"  # whose reader looks up no name of a pickle
IMPORTS_BY_NAME = {  # file -> where the names come from
    "limba/__init__.py": "a table in it",
    "limba/cli/main.py": "a table in it",
    "limba/api.py": "a table in it",
    "limba/tool_registry.py": "a table in it",
    "limba/data/task_modules.py": "the user's gin file or flag, or what imports.check has allowed",
    "limba/data/objectives/choice.py": "the table of limba/config/data.py",
    **dict.fromkeys(("limba/data/dataset.py", "limba/data/sources/units.py"), "the name of limba/data/bridge/"),
    "limba/data/registry.py": "the name of limba/data/bridge/seqio_objects.py",
}


def dotted(node: ast.expr) -> str:
    """Returns a.b.c of an expression; "" if it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def given(call: ast.Call, name: str) -> object:
    """Returns the constant that a call gives for a parameter, or None."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def faults(tree: ast.AST, file: str) -> Iterator[str]:
    bases = [base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    if any(dotted(base).endswith("Unpickler") for base in bases) and file != TABLES_OF_TENSORS:
        yield "a reader of pickles"
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = dotted(call.func)
        last = name.rpartition(".")[2]
        if name in FORBIDDEN:
            yield name
        if name.endswith(PROGRAMS):
            yield f"{name} loads a program"
        if last == "load" and name.startswith("torch") and given(call, "weights_only") is not True:
            yield "torch.load without weights_only=True"
        if last in ("load", "fromfile") and given(call, "allow_pickle"):
            yield f"{name} with allow_pickle"
        if any(keyword.arg == "shell" for keyword in call.keywords):
            yield f"{name} with shell"
        if last in ("extractall", "extract", "unpack_archive") and "re." not in name:
            yield name
        if last in ("import_module", "find_module") and file not in IMPORTS_BY_NAME:
            yield f"{name} in {file}"
        if any(keyword.arg == "trust_remote_code" for keyword in call.keywords) and given(call, "trust_remote_code"):
            yield "trust_remote_code"


def test_no_text_is_run() -> None:
    wrong = [
        f"{place_of(path)}: {fault}"
        for path in SHIPPED
        if "benchmarks" not in path.parts
        for fault in faults(tree_of(path), place_of(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_search_finds_what_it_should() -> None:
    lines = (
        "eval(text)",
        "pickle.load(file)",
        "pickle.loads(data)",
        "class Reader(pickle.Unpickler): pass",
        "yaml.load(file)",
        "os.system(line)",
        "subprocess.run(line, shell=True)",
        "subprocess.run(line, shell=asked)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "zipfile.ZipFile(path).extractall(folder)",
        "importlib.import_module(name)",
        "tempfile.mktemp()",
        "serialize_executable.deserialize_and_load(*kept)",
        "jax.export.deserialize(content)",
        "datasets.load_dataset(name, trust_remote_code=True)",
    )
    assert not [line for line in lines if not list(faults(ast.parse(line), "limba/new.py"))]


def test_what_may_still_does() -> None:
    shipped = {place_of(path): path for path in SHIPPED}
    for file in IMPORTS_BY_NAME:
        tree = ast.parse(shipped[file].read_text())
        assert list(faults(tree, "limba/new.py")), f"{file} needs no permission any more"

"""Imports go down only (docs/development/architecture.md), and each heavy library has its rooms.

Each test looks at all files and names every place that breaks its rule. A module has its folder's floor. Only the
folders of `limba/` (and run.py) are listed below; another one is an error.
"""

import ast
import graphlib
import re
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.shipped import MODULES, ROOT, SHIPPED, TESTS, explanations, imports, module_of, place_of, strings, tree_of

pytestmark = pytest.mark.lint

FLOORS = {
    **dict.fromkeys(("config", "tool_registry"), 0),
    **dict.fromkeys(("sharding", "storage"), 1),
    **dict.fromkeys(("data", "model", "formats"), 2),
    "training": 3,
    **dict.fromkeys(("run", "planned_run", "inference", "evaluation", "export"), 4),
    **dict.fromkeys(("cli", "fit"), 5),
    **dict.fromkeys(("api", "tools"), 6),
}
IN_DATA = {  # the floors inside of limba/data/; the longest name that fits a module counts
    **{"draws": -3, "dataset": -2, "vocabulary.files": -2},
    **{"vocabulary.vocabularies": -1, "user_code": -1},
    **dict.fromkeys(("sources", "task_modules", "registry"), 0),
    **{"vocabulary": 1, "packing": 2, "bridge": 2, "objectives": 3},
    **{"words": -1, "metrics": 4, "tasks": 5},
    **dict.fromkeys(("deal", "vocabulary.train"), 6),
    "stream": 7,
    "run_data": 8,
}
BESIDE_LIMBA = {"tasks": 2, **dict.fromkeys(("launch", "convert", "benchmarks", "tests"), 6)}
WITHOUT_FLOOR = ("limba.__main__",)
# `limba/__init__.py` stands where a run and a model do. Names of two modules are a front end's: were the gin reader
# lower, the engine would have to know the macros.
WAY_IN = ("limba", 4)
FRONT_ENDS = ("limba.cli.gin", "limba.fit")
EVERYWHERE = ("benchmarks/", "tests/")  # may measure and check any library
WALLS = {  # library or folder: where it may be imported
    "flax": ("limba/model/", "limba/training/state.py", "limba/formats/", "tests/"),
    "seqio": ("limba/data/bridge/", "limba/tools/migrate/", "tasks/", *EVERYWHERE),
    "tensorflow": ("limba/data/bridge/", "limba/tools/migrate/", "tasks/", *EVERYWHERE),
    "gin": ("limba/cli/", "limba/tools/migrate/", "tests/"),
    "torch": ("limba/export/", "limba/tools/results/", *EVERYWHERE),
    "transformers": ("limba/export/", "limba/tools/results/", *EVERYWHERE),
    "benchmarks": EVERYWHERE,  # neither is installed with the package
    "tests": EVERYWHERE,  # benchmarks/ runs the tests, and compares with their tiny models
}
WITHOUT_JAX = ("limba/data/",)  # a process that reads for another one would hold it in vain
ENGINE = [path for module, path in MODULES.items() if re.match(r"limba\.(?!cli\b|tools\b|fit\b|__main__)", module)]
MACROS = {  # the names that gin files set for users
    name
    for file in (ROOT / "gin").rglob("*.gin")
    for name in re.findall(r"^([A-Z_]+) =", file.read_text(), re.MULTILINE)
}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z_]+")
FLAGS_OF_OTHERS = re.compile(r"--xla\w*|--add-host|--no-deps|\b(?:zstd|seqio_cache_tasks)(?: --\w+=?)+")
COMMAND = re.compile(r"python -m\b|\blimba (?:train|generate|score|evaluate|report|inspect|vocabulary|convert)\b")

EVERY_FILE = [*SHIPPED, *TESTS]


def floor(module: str) -> int | None:
    """Returns the floor of a module; None for a library's, and for those without one."""
    first, *rest = module.split(".")
    if first != "limba":
        return BESIDE_LIMBA.get(first)
    if module in (*WITHOUT_FLOOR, WAY_IN[0]):
        return None
    assert rest[0] in FLOORS, f"limba/{rest[0]} has no floor yet: give it one in FLOORS"
    return FLOORS[rest[0]]


def is_above(module: str, own_floor: int | None) -> bool:
    there = floor(module)
    return own_floor is not None and there is not None and there > own_floor


def test_imports_go_down() -> None:
    wrong = [
        f"{place_of(path)} stands on floor {own_floor} and imports {name} of a higher one"
        for path in EVERY_FILE
        for own_floor in [WAY_IN[1] if module_of(path) == WAY_IN[0] else floor(module_of(path))]
        for name in imports(path)
        if is_above(name, own_floor) and not (module_of(path) == WAY_IN[0] and name in FRONT_ENDS)
    ]
    assert not wrong, "\n".join(wrong)


def room_in_data(module: str) -> str | None:
    """Returns the room of limba/data/ that a module is in; None for others, and for limba.data itself."""
    name = module.removeprefix("limba.data.")
    rooms = [room for room in IN_DATA if f"{name}.".startswith(f"{room}.")] if name != module else []
    assert rooms or not module.startswith("limba.data."), f"{module} has no floor yet: give it one in IN_DATA"
    return max(rooms, key=len, default=None)


def test_imports_inside_of_data_go_down() -> None:
    wrong = []
    arrows = 0
    for module, path in MODULES.items():
        room = room_in_data(module)
        for name in imports(path) if room else ():
            other = room_in_data(name)
            if room and other and room != other:
                arrows += 1
                if IN_DATA[other] >= IN_DATA[room]:
                    wrong.append(f"{module} ({room}) imports {name}, which does not stand below it")
    assert arrows > 50 and not wrong, "\n".join(wrong)


def test_the_public_names_are_those_of_the_engine() -> None:
    places = {module for _, module in strings(MODULES["limba"]) if module in MODULES}
    assert {"limba.inference.load", "limba.run"} <= places
    assert {module for module in places if is_above(module, WAY_IN[1])} == set(FRONT_ENDS)


def outside_of_walls(path: Path) -> Iterator[str]:
    file = place_of(path)
    libraries = {name.split(".")[0] for name in imports(path)}
    for name in libraries & set(WALLS):
        if not file.startswith(WALLS[name]):
            yield f"{file} imports {name}, which only {WALLS[name]} may"
    if "jax" in libraries and file.startswith(WITHOUT_JAX):
        yield f"{file} imports jax"
    if file.startswith("limba/config/"):
        for name in libraries - {"limba"} - sys.stdlib_module_names:
            yield f"{file} imports {name}; config/ needs the standard library only"


def test_libraries_stay_behind_their_walls() -> None:
    wrong = [fault for path in EVERY_FILE for fault in outside_of_walls(path)]
    assert not wrong, "\n".join(wrong)


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns the nodes of a circle, or nothing.

    >>> circle_in({"a": ["b"], "b": []}), circle_in({"a": ["b"], "b": ["a"]})
    ([], ['a', 'b', 'a'])
    """
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    # `limba` imports a name's module when the name is first used
    modules = set(MODULES) - {*WITHOUT_FLOOR, WAY_IN[0]}
    graph = {module: imports(MODULES[module]) & modules - {module} for module in modules}
    assert any(graph.values())
    assert not circle_in(graph)


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if module not in (*WITHOUT_FLOOR, WAY_IN[0]):
            folder = module.split(".")[:2] if module.startswith("limba.") else module.split(".")[:1]
            others = {".".join(name.split(".")[:2]) for name in imports(path) if name.startswith("limba.")}
            graph.setdefault(".".join(folder), set()).update(others - {".".join(folder)})
    assert any(graph.values())
    assert not circle_in(graph)


API = "limba.api"
# A gin file is read by the very reader of `limba train`: its statements are a language, not names of a surface.
GIN_FILES = ("limba.cli.flags", "limba.cli.gin")
READERS_OF_GIN_FILES = (
    *("limba/tools/preflight/preflight.py", "limba/tools/preflight/configuration.py"),
    "limba/tools/results/suites.py",
    "limba/tools/migrate/",
)
# What migrate still imports beside the names of `limba/api.py`: formats and sources that it names in what it writes.
# This list may only become shorter.
MIGRATE = {
    "limba.data.objectives.spans",
    "limba.data.sources",
    "limba.formats.hub_models",
    "limba.formats.huggingface",
    "limba.formats.names",
    "limba.inference.source",
    "limba.model.kernels.choose",
    "limba.sharding.joining",
    "limba.storage.files",
    "limba.storage.servers",
}


def not_of_the_surface(path: Path) -> Iterator[str]:
    """Yields what a module of a tool imports of Limba beside its configuration, `limba.api` and its own tool."""
    file = place_of(path)
    tool = ".".join(module_of(path).split(".")[:3])
    allowed = ("limba.config", API, tool, *(GIN_FILES if file.startswith(READERS_OF_GIN_FILES) else ()))
    for name in imports(path):
        if name.startswith("limba") and not any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed):
            yield name


def test_tools_import_the_names_of_the_api_alone() -> None:
    wrong = []
    of_migrate = set()
    for path in MODULES.values():
        file = place_of(path)
        if file.startswith("limba/tools/migrate/"):
            of_migrate |= set(not_of_the_surface(path))
        elif file.startswith("limba/tools/"):
            wrong += [f"{file} imports {name}" for name in not_of_the_surface(path)]
    assert not wrong, "\n".join(wrong)
    assert of_migrate == MIGRATE


def test_the_api_is_small_documented_and_there() -> None:
    from limba import api

    lines = MODULES[API].read_text().splitlines()
    entries = [number for number, line in enumerate(lines) if re.match(r'    "\w+": ', line)]
    assert len(entries) == len(api.NAMES)
    undocumented = [lines[number] for number in entries if not re.match("    # [^-]", lines[number - 1])]
    assert not undocumented, "each name has a comment above it in NAMES of limba/api.py"
    for name in api.NAMES:
        value = getattr(api, name)
        is_constant = isinstance(value, dict)
        assert is_constant or (callable(value) and value.__doc__ and not isinstance(value, types.ModuleType)), name


def test_the_api_has_the_same_names_for_type_checkers() -> None:
    from limba import api

    typed = [node for node in tree_of(MODULES[API]).body if isinstance(node, ast.If)]
    imported = {
        alias.asname: f"{node.module}.{alias.name}"
        for block in typed
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == api.NAMES


def test_the_api_imports_nothing_heavy() -> None:
    code = "import sys, limba.api; print([n for n in ('jax', 'numpy', 'tensorflow', 'seqio') if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout == "[]\n"


def test_a_process_that_reads_for_another_one_imports_no_jax() -> None:
    """Nor TensorFlow: the first is 115 MB in each of them, the second 600."""
    code = "import sys, limba.data.stream.processes; print({'jax', 'tensorflow', 'seqio'} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout == "set()\n"


def imported_by(code: str) -> set[str]:
    """Returns the packages, beside Python's own, that a process has imported after some code and not before it."""
    whole = f"import sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before), file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.partition(".")[0] for name in ended.stderr.split()} - set(sys.stdlib_module_names)


def test_the_list_of_commands_imports_no_library() -> None:
    """Every command waits for these imports, some twice: one that computes starts itself again with large pages."""
    assert imported_by("from limba.cli.main import main; main(['--help'])") == {"limba"}


# What a run needs before it has read its configuration and its text. Everything else waits for a use: clients of
# buckets and of the hub for an address, readers of a format for a file.
OF_A_RUN = {
    *("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "jaxtyping", "tensorstore", "etils", "fsspec"),
    *("filelock", "tenacity", "google_crc32c", "psutil", "tensorboardX", "sentencepiece", "regex", "limba"),
}
# What these import themselves. A version of one may bring another, so the list is read, not written here.
HEAVY = {
    *("torch", "transformers", "tokenizers", "safetensors", "tensorflow", "seqio", "t5", "tensorflow_datasets"),
    *("datasets", "huggingface_hub", "pyarrow", "pandas", "scipy", "sklearn", "orbax", "aiohttp", "gcsfs", "requests"),
    *("httpx", "matplotlib", "IPython", "wandb", "sacrebleu", "rouge_score", "nltk", "lm_eval", "gin", "tasks"),
}


def test_a_run_imports_what_it_needs_and_nothing_heavy() -> None:
    imported = imported_by("import limba.run")
    assert imported >= OF_A_RUN
    assert not imported & HEAVY


def test_every_name_of_the_api_is_used_by_a_tool() -> None:
    from limba import api

    tools = [path for path in MODULES.values() if place_of(path).startswith("limba/tools/")]
    nodes = [node for path in tools for node in ast.walk(tree_of(path))]
    used = {alias.name for n in nodes if isinstance(n, ast.ImportFrom) and n.module == API for alias in n.names}
    assert used == set(api.__all__)


KNOWN = {*MODULES, *BESIDE_LIMBA}


def named_modules(text: str) -> set[str]:
    """Returns the modules and folders of ours that a text names, as `limba.cli.gin` or `limba/cli/gin.py`.

    >>> sorted(named_modules("see limba/cli/arguments.py, `limba.config.ModelConfig` and launch/pretrain.sh"))
    ['launch', 'limba.cli.arguments', 'limba.config']
    """
    modules = set()
    for name in re.findall(r"(?<![\w./-])(?:limba|launch|convert)(?:[./]\w+)+", text):
        parts = name.replace("/", ".").split(".")
        modules.add(next(prefix for n in range(len(parts), 0, -1) if (prefix := ".".join(parts[:n])) in KNOWN))
    return modules


TABLE_OF_TOOLS = "limba/tool_registry.py"  # the one place where the engine names them


def test_no_string_names_a_module_of_a_higher_floor() -> None:
    """A docstring or comment may say where in the engine to read on; front ends it does not know either."""
    wrong = [
        f"{place_of(path)}:{line} (floor {own_floor}) names {above}: {text[:100]}"
        for path in ENGINE
        if place_of(path) != TABLE_OF_TOOLS
        for own_floor in [floor(module_of(path))]
        for texts, highest in ((strings(path), own_floor), (explanations(path), 4))
        for line, text in texts
        if (above := [name for name in named_modules(text) if is_above(name, highest)])
    ]
    assert not wrong, "\n".join(wrong)


def spelt(text: str) -> list[str]:
    """Returns the flags, macros and commands that a text spells."""
    macros = MACROS & set(re.findall(r"\b[A-Z][A-Z_]+\b", text))
    return [*FLAG.findall(FLAGS_OF_OTHERS.sub("", text)), *macros, *COMMAND.findall(text)]


def test_the_engine_knows_neither_flags_nor_macros_nor_commands() -> None:
    wrong = [
        f"{place_of(path)}:{line} spells {names}: {text[:100]}"
        for path in ENGINE
        for line, text in (*strings(path), *explanations(path))
        if (names := spelt(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_folders_say_what_they_hold() -> None:
    for folder in sorted({path.parent for path in MODULES.values() if path.is_relative_to(ROOT / "limba")}):
        said = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
        if folder != ROOT / "limba":  # the way in to all floors says what the package is
            lines = said.splitlines()
            assert 2 <= len(lines) <= 8 and re.search(r"\b[Ii]mport|^Part of `", said, re.MULTILINE), (
                f"{place_of(folder)}/__init__.py does not say what lives there and what it may import"
            )


# What Limba uses of jax, TensorFlow and seqio that they have no public name for; a new version may change it.
PRIVATE = {
    "jax._src.distributed": "the client of the service by which processes have joined",
    "jax._src.clusters": "the classes by which jax finds that it runs in a cluster, one by one",
    "seqio.utils._NEXT_MAP_SEED": "the seed of a task's maps, on which a data position depends",
}


def private_names(path: Path) -> Iterator[str]:
    """Yields what a file imports or takes from a module of these libraries whose name begins with an underscore."""
    libraries = ("jax", "jaxlib", "seqio", "tensorflow", "tf", "vocabularies")
    for node in ast.walk(tree_of(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            parts = name.split(".")
            if parts[0] in libraries and any(re.match("_[^_]", part) for part in parts):
                yield name


def test_few_private_names_of_libraries_are_used() -> None:
    used = {name: place_of(path) for path in SHIPPED for name in private_names(path) if "benchmarks" not in path.parts}
    assert used.keys() == PRIVATE.keys(), used


# Names of T5X's gins and of Hugging Face's scripts: only `migrate` reads them. Formats of checkpoints have their own,
# and the two tables name its modules.
FOREIGN = re.compile(
    r"\bt5x?\.\w|\b(?:run_t5_mlm|T5Config|PjitPartitioner|DatasetConfig|model_name_or_path|per_device_train_batch_size"
    r"|use_auth_token|load_best_model_at_end|read_t5x|is_t5x_gin|pytorch_bin)\b"
)
FORMATS = ("limba/formats/", "limba/export/", TABLE_OF_TOOLS, "limba/cli/main.py")


def test_the_engine_sees_no_foreign_name() -> None:
    wrong = [
        f"{place_of(path)}:{line}: {text[:100]}"
        for module, path in MODULES.items()
        if re.match(r"limba\.(?!tools\b)", module) and not place_of(path).startswith(FORMATS)
        for line, text in strings(path)
        if FOREIGN.search(text)
    ]
    assert not wrong, "\n".join(wrong)

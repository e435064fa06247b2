"""The Markdown pages: width of prose, links, and that every file, command, flag and gin name in them exists."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from limba import config
from limba.cli import generate
from limba.cli.main import COMMANDS
from limba.config.optimizer import fields_of
from limba.tools.migrate.huggingface.keys import KNOWN
from limba.tools.migrate.t5x import tables as t5x

pytestmark = pytest.mark.lint
ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md", "tests/golden/*.md")
    for page in ROOT.glob(pattern)
)
MOST_COLUMNS = 120
LEFT_BY_RUNS = re.findall(r"^/?([\w.-]+)/$", (ROOT / ".gitignore").read_text(), re.MULTILINE)
FOLDERS = "|".join(
    sorted(
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in LEFT_BY_RUNS
    )
)
PATH = re.compile(rf"(?:{FOLDERS})/[\w./*{{}},-]*|[\w/]+/\w+\.py")
# What lies elsewhere: files that a reader makes, T5X's, and what only the wheel has.
ELSEWHERE = re.compile(
    r"gin/my_|(?:tasks|gin|launch)/(?:nb|mine|fo)|FAMILY|NAME|requirements/|vocabulary/|prepared\.|mt5|ro_test|en_test|from_json|in\.txt|held_out|examples/t5|limba/shipped"
)
COMMAND = re.compile(r"(?<!from )(?<![\w/.-])limba ([a-z0-9_]+)")
MODULE = re.compile(r"python -m ((?:launch|convert|benchmarks)\.\w+)")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z_-]+)")
GIN_NAME = re.compile(r"--gin\.([A-Z][A-Z_]+|config\.\w+\.\w+)=")
ASSIGNED = re.compile(r"(?<![\w.$-])([A-Z][A-Z0-9_]*)(?: = |=(?!=))")  # a macro of a gin file, a variable of a script
SCRIPT = re.compile(r"(?:launch|convert)/\w+\.sh")
TAKES_ANY_FLAG = ("launch/slurm.sh",)  # it gives sbatch what it does not know itself
CLASS = re.compile(r"(?<![\w.])config\.([A-Z]\w+)")
MACROS = {
    name
    for file in (ROOT / "gin").rglob("*.gin")
    for name in re.findall(r"^([A-Z_]+) =", file.read_text(), re.MULTILINE)
}
T5X_MACROS = {name for path in t5x.PATHS for name in (t5x.include_file(path) or ((), {}))[1] if "." not in name}
# How names of other programs begin: NVIDIA's, jax's, Cloud TPU's and so on, a status of TensorFlow's, a macro of T5X's.
OF_OTHERS = ("NCCL_", "CUDA_", "XLA_", "JAX_", "WANDB_", "TFDS_", "HF_", "UV_", "TPU_", "DATA_LOSS", "NUM_EMBEDDINGS")
# Flags of Docker, sbatch, xpk, CTranslate2 and lm-evaluation-harness; XLA's begin with xla_.
FLAGS_OF_OTHERS = (
    "privileged", "cpus-per-task", "max-restarts", "num_fewshot", "limit", "include_path", "output_path", "log_samples",
    "copy_files",
)  # fmt: skip
# Of T5X and EuroBERT, and those that tests plant.
PAGES_OF_OTHERS = ("docs/models.md", "docs/trainer.md", "docs/singing.md", "docs/index.md")
BLOCKS = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of a page that are neither code nor a table, without the targets of links."""
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|"):
            yield number, re.sub(r"\]\([^)]*\)|<https?://[^>]*>", "]", line)


def code(page: Path) -> list[str]:
    """Returns a page's code: the lines of its blocks, continued ones joined, and what stands between backticks."""
    text = page.read_text()
    blocks = [block.replace("\\\n", " ").splitlines()[1:-1] for block in BLOCKS.findall(text)]
    return [*itertools.chain(*blocks), *INLINE.findall(" ".join(BLOCKS.sub("", text).split()))]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", BLOCKS.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def alternatives(path: str) -> list[str]:
    """Returns the paths that a{b,c} stands for."""
    match = re.search(r"\{([^{}]*)\}", path)
    if match is None:
        return [path]
    return [
        alternative for part in match[1].split(",") for alternative in alternatives(path.replace(match[0], part, 1))
    ]


def is_there(path: str) -> bool:
    """True for a file or folder of ours, from the root or from within limba/, and for what several files begin with."""
    if "*" in path:
        return any(ROOT.glob(path))
    return (ROOT / path).exists() or any(ROOT.glob(f"{path}.*")) or any((ROOT / "limba").rglob(path))


def test_the_pages_are_found() -> None:
    expected = {"README.md", "CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md", "what_did_not_help.md", "libraries.md"}
    assert expected <= {page.name for page in PAGES}
    assert len(MACROS) > 50 and columns("日本 語") == 7 and alternatives("a/{b,c}.py") == ["a/b.py", "a/c.py"]


def assert_of_all_pages(faults: Callable[[Path], Iterable[str]]) -> None:
    """Fails with the faults of all pages."""
    all_faults = [f"{page.relative_to(ROOT).as_posix()} {fault}" for page in PAGES for fault in faults(page)]
    assert not all_faults, "\n".join(all_faults)


def wide_lines(page: Path) -> Iterator[str]:
    return (f"has a wide line {number}" for number, line in prose(page) if columns(line) > MOST_COLUMNS)


def test_prose_is_at_most_120_columns_wide() -> None:
    assert_of_all_pages(wide_lines)


# What is read whole, before work: one page of A4 and five. Nobody reads a longer one to its end.
MOST_WORDS = {"AGENTS.md": 450, "docs/development/what_did_not_help.md": 2_500}


@pytest.mark.parametrize(("page", "most"), MOST_WORDS.items())
def test_what_is_read_whole_stays_short(page: str, most: int) -> None:
    num_words = len((ROOT / page).read_text().split())
    assert num_words <= most, f"{page} has {num_words} words: take out what would help least"


def files_of_the_night() -> set[str]:
    """Returns the test files with a test that a landing does not run."""
    paths = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    late = (path for path in paths if re.search(r"\bmark\.(?:night|long)\b", path.read_text()))
    return {path.relative_to(ROOT).as_posix() for path in late}


def test_what_a_landing_leaves_out_has_its_reason() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| files | why only at night |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    places = []
    for row in rows:
        places += INLINE.findall(row.split("|")[1])
    left = files_of_the_night()
    for place in places:
        named = {file for file in left if file.startswith(place)}
        assert named, f"CONTRIBUTING.md names {place}, of which a landing runs everything"
        left -= named
    assert not left, f"CONTRIBUTING.md does not say why a landing leaves out tests of {', '.join(sorted(left))}"


def broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCKS.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        other = (page.parent / path) if path else page
        if "://" not in target and not (other.exists() and (not anchor or anchor in anchors(other))):
            yield f"links to {target}"


def test_links_lead_somewhere() -> None:
    assert_of_all_pages(broken_links)


def missing_files(page: Path) -> Iterator[str]:
    words = [word.strip("'\"()[],;:.") for line in code(page) for word in line.split("#")[0].split()]
    places = [re.sub(r"^--\w+=|^[A-Z_]+=", "", word) for word in words]
    named = [name for name in places if PATH.fullmatch(name) and not ELSEWHERE.search(name)]
    return (f"names {path}" for name in named for path in alternatives(name) if not is_there(path))


def test_files_exist() -> None:
    assert_of_all_pages(missing_files)


def test_the_tree_of_the_architecture_page_is_whole() -> None:
    (tree,) = [
        block
        for block in BLOCKS.findall((ROOT / "docs/development/architecture.md").read_text())
        if "limba/\n" in block
    ]
    words = set(re.findall(r"\w+", tree))
    modules = {path.stem for path in (ROOT / "limba").rglob("*.py")} - {"__init__", "__main__"}
    moved = {path.stem for path in (ROOT / "limba").rglob("*.py") if path.read_text().startswith('"""Moved to ')}
    in_commands = {path.stem for room in ("cli", "tools") for path in (ROOT / "limba" / room).rglob("*/*.py")}
    assert not (missing := modules - moved - in_commands - words), missing


@functools.cache
def spelt_by_commands() -> str:
    return "".join(path.read_text() for room in ("cli", "tools") for path in (ROOT / "limba" / room).rglob("*.py"))


def unknown_commands(page: Path) -> Iterator[str]:
    for line in (line.split(" #")[0] for line in code(page)):
        commands = COMMAND.findall(line)
        yield from (f"has limba {command}" for command in commands if command not in (*COMMANDS, "help"))
        for module in MODULE.findall(line):
            if not (ROOT / f"{module.replace('.', '/')}.py").exists():
                yield f"has python -m {module}"
        script = SCRIPT.search(line)
        if script and not commands and script[0] not in TAKES_ANY_FLAG:
            for flag in FLAG.findall(line[script.end() :].split(" -- ")[0]):
                if flag != "gin" and flag not in flags_of_programs():
                    yield f"has --{flag} in {line}"
        for flag in FLAG.findall(line) if commands else ():
            if flag not in ("gin", "help", *KNOWN, *generate.FLAGS) and f"--{flag}" not in spelt_by_commands():
                yield f"has --{flag} in {line}"


def test_commands_and_their_flags_exist() -> None:
    assert_of_all_pages(unknown_commands)


@functools.cache
def spelt_by_programs() -> str:
    """Returns the text of all programs that a page may name flags and variables of."""
    programs = ("launch/*.sh", "convert/*.sh", "limba/**/*.py", "benchmarks/*.py", "examples/*", "tests/*.sh")
    files = [path for pattern in programs for path in ROOT.glob(pattern) if path.is_file()]
    return "".join(path.read_text() for path in [*files, ROOT / "Dockerfile", ROOT / "launch" / "apptainer.def"])


@functools.cache
def words_of_programs() -> set[str]:
    return set(re.findall(r"\w+", spelt_by_programs()))


@functools.cache
def flags_of_programs() -> set[str]:
    return set(FLAG.findall(spelt_by_programs()))


def has_field(owner: str, field: str) -> bool:
    """Whether a class of limba/config has a field; True for any other class."""
    cls = getattr(config, owner, None)
    return cls is None or field in fields_of(cls) or hasattr(cls, field)


def unknown_gin_names(page: Path) -> Iterator[str]:
    for name in itertools.chain.from_iterable(GIN_NAME.findall(line) for line in code(page)):
        if name.startswith("config."):
            _, owner, field = name.split(".")
            is_known = owner == "CLASS" or (hasattr(config, owner) and has_field(owner, field))
        else:
            is_known = name in MACROS | T5X_MACROS | {"NAME"}
        if not is_known:
            yield f"has {name}"
    for line in code(page):
        for name in ASSIGNED.findall(line):
            is_known = name in MACROS | T5X_MACROS or name in words_of_programs()
            if not is_known and not name.startswith(OF_OTHERS):
                yield f"sets {name}"
        classes = [name for name in CLASS.findall(line) if name != "CLASS"]
        yield from (f"has config.{name}" for name in classes if not hasattr(config, name))


def test_gin_names_exist() -> None:
    assert_of_all_pages(unknown_gin_names)


def unknown_words(page: Path) -> Iterator[str]:
    """Yields names and flags between backticks, without a command beside them, that no program and no gin file has."""
    text = " ".join(BLOCKS.sub("", page.read_text()).split())
    for span in INLINE.findall(text):
        if match := re.match(r"([A-Z][A-Z0-9]*_[A-Z0-9_]+)( ?=|$)", span):
            name = match[1]
            is_known = name in MACROS | T5X_MACROS or name in words_of_programs()
            if not is_known and not name.startswith(OF_OTHERS):
                yield f"names {name}"
        for owner, field in re.findall(r"(?<![\w.])(?:config\.)?(\w+Config)\.([a-z]\w+)", span):
            if not has_field(owner, field):
                yield f"names {owner}.{field}"
        if match := re.match(r"--([a-z][a-z_-]+)", span):
            flag = match[1]
            forms = {flag, flag.removeprefix("no-")}  # --no-scan may stand for --scan
            is_known = flag in (*KNOWN, *generate.FLAGS, *FLAGS_OF_OTHERS) or flag.startswith("xla_")
            is_known = is_known or not forms.isdisjoint(flags_of_programs())
            if not is_known:
                yield f"names --{flag}"


def test_names_in_prose_exist() -> None:
    assert_of_all_pages(unknown_words)


@pytest.mark.parametrize(
    ("planted", "find"),
    [
        ("`limba sing`", unknown_commands), ("`limba train --sing`", unknown_commands),
        ("`bash launch/pod.sh create x --sing=1`", unknown_commands),
        ("`--gin.SING_LOUD=1`", unknown_gin_names), ("`--gin.config.ModelConfig.sing=1`", unknown_gin_names),
        ("`SINGING = 1`", unknown_gin_names), ("`SINGING=1 bash launch/pretrain.sh`", unknown_gin_names),
        ("`config.SingConfig.loud = 1`", unknown_gin_names), ("\n```gin\nSINGING = 1\n```\n", unknown_gin_names),
        ("`SING_LOUD = 1`", unknown_words), ("`ModelConfig.sing`", unknown_words), ("`--sing=1`", unknown_words),
        ("`gin/singing.gin`", missing_files), ("[song](singing.md)", broken_links),
    ],
)  # fmt: skip
def test_what_is_not_there_is_found(planted: str, find: Callable[[Path], Iterable[str]], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\nWrite `limba train`, `TRAIN_STEPS`, `ModelConfig.dtype` or `--topology=v4-8`.\n")
    assert not list(find(page))
    page.write_text(f"{page.read_text()}\nOr {planted}.\n")
    (fault,) = find(page)
    assert "sing" in fault.lower()


def test_pages_that_code_names_exist() -> None:
    """In messages, --help and comments, which users read."""
    missing = []
    for folder in ("limba", "gin", "launch", "convert", "tasks", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix not in (".py", ".gin", ".sh", ".md", ".def", ".ipynb"):
                continue
            for page in re.findall(r"(?<![\w/.-])docs/[\w/.-]+\.md", path.read_text()):
                if page not in PAGES_OF_OTHERS and not (ROOT / page).is_file():
                    missing.append(f"{path.relative_to(ROOT)} names {page}")
    assert not missing, "\n".join(missing)

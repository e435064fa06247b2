"""What all processes of a run must have alike: configuration, versions, code and data.

Each process lists its *facts*; a digest of them is compared, and only where it differs are the facts sent, so that what
differs can be named.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.config import InputError, RunConfig
from limba.config.errors import without_credentials
from limba.config.kinds import class_name
from limba.sharding.agreement import gathered, named, of_first, own_part

# What a process has: a name that says what it is, and its value as text.
Facts = Mapping[str, str]
# For each name whose value is not process 0's: the value here and process 0's; None where one has no such thing.
Differing = Mapping[str, Sequence[str | None]]

MOST_DIFFERENCES = 3  # that a sentence names
LONGEST = 120  # characters of a value in it
# Fields that change neither numbers nor data. The vocabulary's content is compared, not its path.
FREE_FIELDS = ("DataConfig.vocabulary", "DataConfig.num_reader_processes", "RunConfig.profile_steps")
PACKAGES = ("jax", "jaxlib", "libtpu", "limba", "flax", "numpy", "optax", "sentencepiece", "seqio", "tensorflow")
ROOT = Path(__file__).resolve().parents[2]  # of a checkout, or where packages are installed


def check_alike(facts_of: Callable[[], Facts]) -> None:
    """Raises InputError, in all processes alike, if one has other facts than process 0; all must call it.

    Usually 16 bytes of each process are compared. Only if they differ are the facts sent. With one process the facts
    are not made.
    """
    if own_part()[1] == 1:
        return
    facts = facts_of()
    content = json.dumps(facts, sort_keys=True)
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    digests = gathered("alike", digest)
    if len(set(digests)) == 1:
        return
    facts_of_first = json.loads(of_first(content))
    differences = json.dumps(differing(facts, facts_of_first))
    raise InputError(sentence([json.loads(text) for text in gathered("differing", differences)]))


def differing(facts: Facts, first: Facts) -> dict[str, tuple[str | None, str | None]]:
    """Returns the names whose values differ from process 0's, with both values, in the order of the facts.

    >>> differing({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"})
    {'b': ('2', '3'), 'c': (None, '4')}
    """
    names = [*facts, *(name for name in first if name not in facts)]
    return {name: (facts.get(name), first.get(name)) for name in names if facts.get(name) != first.get(name)}


def sentence(of_processes: Sequence[Differing]) -> str:
    """Returns what differs in which processes, from `differing` of each process; process 0's is empty.

    >>> print(sentence([{}, {"jax": ("0.10.1", "0.10.2")}]).partition(";")[0])
    The processes of this run are not alike: process 1 has jax 0.10.1, process 0 has 0.10.2
    """
    processes_with: dict[tuple[str, str | None, str | None], list[int]] = {}
    for process, differences in enumerate(of_processes):
        for name, (value, first) in differences.items():
            processes_with.setdefault((name, value, first), []).append(process)
    # Differences of one name stand together, in the order in which the names came.
    names = list(dict.fromkeys(name for name, _, _ in processes_with))
    ordered = sorted(processes_with, key=lambda difference: names.index(difference[0]))
    clauses = [_clause(*difference, processes_with[difference]) for difference in ordered]
    more = ""
    if len(clauses) > MOST_DIFFERENCES:
        more = f"; and {len(clauses) - MOST_DIFFERENCES:,} more differences"
    return (
        f"The processes of this run are not alike: {'; '.join(clauses[:MOST_DIFFERENCES])}{more}; start the same"
        " command with the same code, packages and data on every worker."
    )


def _clause(name: str, value: str | None, first: str | None, processes: Sequence[int]) -> str:
    who = named(processes)
    several = len(processes) > 1
    if value is None:
        return f"{who} {'do' if several else 'does'} not have {name}, which process 0 has"
    verb = "have" if several else "has"
    if first is None:
        return f"{who} {verb} {name}, which process 0 does not have"
    return f"{who} {verb} {name} {_shown(value)}, process 0 has {_shown(first)}"


def _shown(text: str) -> str:
    text = without_credentials(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def facts_of_run(config: RunConfig, modules: Sequence[str]) -> dict[str, str]:
    """Returns the facts of a configuration, of the versions, and of Limba's code and these modules of tasks."""
    return {**fields_of(config), **versions(), **code(modules)}


def fields_of(config: RunConfig) -> dict[str, str]:
    """Returns each field of nested dataclasses, without FREE_FIELDS, by its full name.

    A class that comes a second time has the path of its field: "EvaluationConfig.sampling.top_k".
    """
    facts: dict[str, str] = {}
    seen: set[str] = set()  # names of classes
    left = deque[tuple[str, Any]]([(type(config).__name__, config)])
    while left:  # the outermost first
        prefix, part = left.popleft()
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            name = f"{prefix}.{field.name}"
            if dataclasses.is_dataclass(value):
                owner = class_name(value)
                left.append((name if owner in seen else owner, value))
                seen.add(owner)
            elif name not in FREE_FIELDS:
                facts[name] = repr(dict(value) if isinstance(value, Mapping) else value)
    return facts


def versions() -> dict[str, str]:
    """Returns the versions of Python, without the last number, and of the packages that decide a run's numbers."""
    major, minor, _ = platform.python_version_tuple()
    of_packages = {name.replace("limba", "Limba"): version for name, version in installed(PACKAGES).items()}
    return {"Python": f"{major}.{minor}", **of_packages}


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Returns package -> its version, for each of these packages that is installed."""
    version_of: dict[str, str] = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version_of[name] = importlib.metadata.version(name)
    return version_of


def code(modules: Sequence[str] = ()) -> dict[str, str]:
    """Returns a digest of each file of Limba's code, of `tasks` beside it, and of these modules, which are imported."""
    facts = {f"{path} with content": digest for path, digest in _digests_of_limba().items()}
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).exists():
            facts[f"the module {name} with content"] = _digest(Path(file))
    return facts


@functools.cache
def _digests_of_limba() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): _digest(path) for path in _files_of_limba()}


def _files_of_limba() -> Iterator[Path]:
    yield from sorted((ROOT / "limba").rglob("*.py"))
    is_checkout = (ROOT / "gin" / "runs").is_dir()
    if is_checkout:  # else `tasks` would be another package
        yield from sorted((ROOT / "tasks").rglob("*.py"))


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()

"""Tasks and mixtures behind seqio's interface, and their registries, without seqio and TensorFlow.

What is registered here is in seqio's own registries too, as soon as anything imports seqio; what is registered
there is found here. Objects of seqio count as instances of these classes (`LikeSeqio`).
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

from limba.config import InputError, nearest
from limba.data.dataset import Step
from limba.data.vocabulary.vocabularies import LikeSeqio, Vocabulary


@dataclass(frozen=True)
class Feature(LikeSeqio):
    """What a task's preprocessors make of one side of its examples: ids of a vocabulary, by default int32 [n].

    >>> from limba.data.vocabulary import ByteVocabulary
    >>> Feature(ByteVocabulary(100)).vocabulary.vocab_size  # with 100 sentinels
    359
    """

    vocabulary: Vocabulary
    add_eos: bool = True
    required: bool = True
    dtype: Any = "int32"
    rank: int = 1


@dataclass(frozen=True, eq=False)
class Task(LikeSeqio):
    """A source of documents, and the preprocessors that make examples with `output_features` of them.

    `metric_fns` take (targets, predictions), (targets, scores), or (targets, predictions, aux_values), each after
    `postprocess_fn`, and return {name: value}. `metric_objs` are seqio's.

    >>> from limba.data.objectives import span_corruption, tokenize_documents
    >>> from limba.data.sources import FileSource
    >>> from limba.data.vocabulary import ByteVocabulary
    >>> features = {name: Feature(ByteVocabulary(100)) for name in ("inputs", "targets")}
    >>> task = Task("nb", FileSource("nb.txt"), features, [tokenize_documents, span_corruption])
    >>> task.splits
    ('train', 'validation')
    """

    name: str
    source: Any
    output_features: Mapping[str, Feature]
    preprocessors: Sequence[Step] = ()
    postprocess_fn: Step | None = None
    metric_fns: Sequence[Step] = ()
    metric_objs: Sequence[object] = ()
    shuffle_buffer_size: int | None = None

    @property
    def splits(self) -> Sequence[str]:
        return self.source.splits

    def replace(self, **choices: object) -> Task:
        """Returns the task with other choices."""
        return dataclasses.replace(self, **choices)  # pyright: ignore[reportArgumentType]


class Mixture(LikeSeqio):
    """Several tasks, or mixtures of them, each with a rate: a number, or a function of the task.

    >>> from limba.data.sources import FileSource
    >>> from limba.data.vocabulary import ByteVocabulary
    >>> features = {"targets": Feature(ByteVocabulary())}
    >>> nb, nn = (Task(name, FileSource(f"{name}.txt"), features) for name in ("nb", "nn"))
    >>> both = Mixture("nb_nn", [(nb, 3.0), (nn, 1.0)])
    >>> both.get_rate(nb) / both.total_rate, [task.name for task in both.tasks]
    (0.75, ['nb', 'nn'])
    """

    def __init__(self, name: str, tasks: Sequence[Any], default_rate: Rate | None = None):
        """`tasks` are names, tasks and mixtures, or pairs of one of these and its rate.

        A rate of 0 leaves a task out for now, as in seqio. Raises InputError for a name that is not registered, tasks
        with different features, and rates that are missing, negative, not finite, or all 0.
        """
        self.name = name
        self._rates: dict[str, tuple[Provider, Any]] = {}
        lacks_rate = False
        for entry in tasks:
            provider, rate = entry if isinstance(entry, tuple | list) else (entry, default_rate)
            if isinstance(provider, str):
                provider = _registered(provider)
            if rate is not None and not callable(rate):  # a function is asked when its rate is needed
                rate = self._checked(provider.name, rate)
            self._rates[provider.name] = (provider, rate)
            lacks_rate = lacks_rate or rate is None
        if lacks_rate or not self.tasks:
            raise InputError(
                f"The mixture {name} has no task, or one without a rate; give each a rate, or default_rate."
            )
        if not any(callable(rate) for _, rate in self._rates.values()):
            self._check_total()
        if len({tuple(sorted(task.output_features)) for task in self.tasks}) > 1:
            raise InputError(f"The tasks of mixture {name} have different output_features; give all the same names.")

    @property
    def tasks(self) -> list[Task]:
        """The tasks, of mixtures inside too, in the order of their names."""
        by_name: dict[str, Task] = {}  # a task may be in several mixtures
        for provider, _ in self._rates.values():
            for part in parts_of(provider):
                by_name[part.name] = part
        return [by_name[name] for name in sorted(by_name)]

    @property
    def output_features(self) -> Mapping[str, Feature]:
        return self.tasks[0].output_features

    @property
    def splits(self) -> Sequence[str]:
        return tuple({split: None for task in self.tasks for split in task.splits})

    @property
    def total_rate(self) -> float:
        return sum(self._rate(name) for name in self._rates)

    def get_rate(self, task: Task) -> float:
        """Returns a task's rate; a nested mixture's rate is divided among its tasks by their own rates.

        Raises InputError for a function that gives anything but a rate.
        """
        rate = self._rate(task.name) if task.name in self._rates else 0.0
        for name, (provider, _) in self._rates.items():
            if isinstance(provider, Mixture) and any(part.name == task.name for part in provider.tasks):
                rate += self._rate(name) * provider.get_rate(task) / provider.total_rate
        return rate

    def _rate(self, name: str) -> float:
        provider, rate = self._rates[name]
        if callable(rate):
            rate = self._checked(name, float(rate(provider)))  # pyright: ignore[reportArgumentType]
        return rate

    def _checked(self, task_name: str, rate: object) -> float:
        try:
            number = float(rate)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise InputError(
                f"The rate of {task_name} in mixture {self.name} is {rate!r}; give a number from 0 on, where 0 leaves"
                " the task out."
            )
        return number

    def _check_total(self) -> None:
        total = self.total_rate
        if not 0 < total < math.inf:
            raise InputError(
                f"The rates of mixture {self.name} add up to {total:g}, so no task can be chosen by them; give rates"
                " such as 1.0 and 3.0."
            )


Provider: TypeAlias = Task | Mixture
Rate: TypeAlias = float | Callable[[Provider], float]


def parts_of(task: Provider) -> list[Task]:
    """Returns the tasks of a mixture, or the task itself.

    >>> task = Task("nb", None, {})
    >>> [part.name for part in parts_of(task)]
    ['nb']
    """
    return list(task.tasks) if isinstance(task, Mixture) else [task]


class _Registry:
    """Names and what they stand for; then the names in seqio's registry of the same name, where seqio is imported."""

    kind: ClassVar[type]
    _own: ClassVar[dict[str, Provider]]

    @classmethod
    def add(cls, name: str, *arguments: object, **choices: object) -> object:
        """Registers `kind(name, …)`, and returns it; InputError for a name that is taken."""
        made = cls.kind(name, *arguments, **choices)
        cls.add_provider(name, made)
        return made

    @classmethod
    def add_provider(cls, name: str, provider: Provider) -> None:
        """Registers a task or mixture; InputError for a name that is taken."""
        if name in cls.names():
            raise InputError(f"The name {name} is registered already; give another one.")
        cls._own[name] = provider
        if "seqio" in sys.modules:
            _add_to_seqio(provider)
        elif not any(isinstance(finder, _SeqioFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _SeqioFinder())

    @classmethod
    def _of_seqio(cls) -> Any:
        return getattr(sys.modules.get("seqio"), cls.__name__, None)

    @classmethod
    def names(cls) -> Collection[str]:
        theirs = cls._of_seqio()
        return {**cls._own, **dict.fromkeys(theirs.names() if theirs else ())}.keys()

    @classmethod
    def get(cls, name: str) -> Any:
        """Returns what is registered, of seqio's registry an object of seqio; InputError for an unknown name."""
        if name in cls._own:
            return cls._own[name]
        if name not in cls.names():
            near = nearest(name, list(cls.names()))
            raise InputError(f"{name} is not registered{f'; did you mean {near}?' if near else '.'}")
        return cls._of_seqio().get(name)

    @classmethod
    def remove(cls, name: str) -> None:
        """Removes a name from this registry and from seqio's, if it is there."""
        cls._own.pop(name, None)
        if theirs := cls._of_seqio():
            theirs.remove(name)


def _registered(name: str) -> Provider:
    """Returns the task or the mixture of this name; InputError for an unknown one."""
    registry = TaskRegistry if name in TaskRegistry.names() else MixtureRegistry
    return registry.get(name)


class TaskRegistry(_Registry):
    """All tasks; `add` takes the arguments of `Task`.

    >>> from limba.data.sources import FileSource
    >>> from limba.data.vocabulary import ByteVocabulary
    >>> task = TaskRegistry.add("example", FileSource("nb.txt"), {"targets": Feature(ByteVocabulary())})
    >>> TaskRegistry.get("example") is task
    True
    >>> TaskRegistry.remove("example")
    """

    kind = Task
    _own: ClassVar[dict[str, Provider]] = {}


class MixtureRegistry(_Registry):
    """All mixtures; `add` takes the arguments of `Mixture`."""

    kind = Mixture
    _own: ClassVar[dict[str, Provider]] = {}


def _add_to_seqio(*made: Provider) -> None:
    # By its name, since it stands above: it imports seqio and TensorFlow.
    importlib.import_module(f"{__package__}.bridge.seqio_objects").add(made)


class _SeqioFinder(MetaPathFinder):
    """Finds seqio where it is, and registers all tasks and mixtures in it as soon as it is imported."""

    def __init__(self) -> None:
        self._is_asking = False  # the other finders, of which one may ask all finders, this one too

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "seqio" or self._is_asking:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        self._is_asking = True
        try:
            module_spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        finally:
            self._is_asking = False
        if module_spec is None or module_spec.loader is None:
            return module_spec
        execute = module_spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _add_to_seqio(*TaskRegistry._own.values(), *MixtureRegistry._own.values())

        module_spec.loader.exec_module = exec_module
        return module_spec

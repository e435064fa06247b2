"""Skips optional imports of TensorFlow and seqio, half of the start-up time."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

# While the first is imported, the others cannot be: it tries to import them, and does without them where they are not
# installed. They can be imported as ever afterwards: `tf.keras` imports Keras when it is first used.
LEFT_OUT = {
    "tensorflow": ("keras", "tf_keras", "h5py", "scipy.sparse"),
    "tensorboardX": ("torch", "google.cloud.storage"),
}
# While the first is imported, the others are stand-ins, which import the module when one of its names is used.
POSTPONED = {"seqio": ("tensorflow_text", "pyglove"), "tensorflow": ("requests",)}


class _Postponed(ModuleType):
    """Stands for a module until one of its names is used."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    places: dict[str, ModuleType | None] = dict.fromkeys(LEFT_OUT.get(name, ()))
    places |= {each: _Postponed(each) for each in POSTPONED.get(name, ())}
    ours = {each: place for each, place in places.items() if each not in sys.modules}
    sys.modules.update(ours)  # pyright: ignore[reportArgumentType, reportCallIssue]  None: an import of it fails
    try:
        yield
    finally:
        for each, place in ours.items():
            if each in sys.modules and sys.modules[each] is place:
                del sys.modules[each]


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with _without(module.__name__):
            super().exec_module(module)


class Finder(MetaPathFinder):
    """Finds the libraries of LEFT_OUT and POSTPONED where they are, and loads them without the others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in LEFT_OUT and fullname not in POSTPONED:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if found is not None and type(found.loader) is SourceFileLoader:
            found.loader = _Loader(found.loader.name, found.loader.path)
        return found


def install() -> None:
    """Lets later imports of these libraries leave out the others. Imports nothing; may be called again."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())

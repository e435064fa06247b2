"""What is in a folder, and its removal, with every name taken as it is; at local paths and at addresses alike.

epath's `glob`, and fsspec's `rm` and `mv`, by which epath removes and renames in a bucket, take `*`, `?` and `[` in the
name of any folder above for a pattern: a run in gs://bucket/run? would remove the steps of gs://bucket/run1.
"""

import contextlib
import fnmatch
from collections.abc import Mapping
from typing import Any

import fsspec
from etils import epath

from limba.storage.failures import for_each

NUM_THREADS = 16  # requests about objects at one time
Objects = Mapping[str, Mapping[str, Any]]  # name -> what the bucket says of the object


def matching(folder: epath.Path, pattern: str) -> list[epath.Path]:
    """Returns what is in a folder under a name of this pattern, in order; [] if there is no such folder.

    >>> folder = epath.Path("runs[1]")
    >>> folder.mkdir()
    >>> _ = (folder / "step_10").write_text(""), (folder / "notes").write_text("")
    >>> [path.name for path in matching(folder, "step_*")]
    ['step_10']
    """
    try:
        children = [*folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(child for child in children if fnmatch.fnmatchcase(child.name, pattern))


def remove_file(path: epath.Path) -> None:
    """Removes a file, if there is one."""
    if "://" not in str(path):
        path.unlink(missing_ok=True)
        return
    system, name = fsspec.core.url_to_fs(str(path))
    with contextlib.suppress(FileNotFoundError):
        system.rm_file(name)


def remove_folder(path: epath.Path) -> None:
    """Removes a folder with all that is in it; FileNotFoundError if there is none."""
    if "://" not in str(path):
        path.rmtree()
        return
    objects = objects_in(path)
    if not objects:
        raise FileNotFoundError(str(path))
    remove_objects(path, objects)


def rename_folder(path: epath.Path, target: epath.Path) -> None:
    """Gives a folder, or a file, another name in the same place; in a bucket its objects are copied and removed."""
    if "://" not in str(path):
        path.rename(target)
        return
    objects = objects_in(path)
    if not objects:
        raise FileNotFoundError(str(path))
    system, before = fsspec.core.url_to_fs(str(path))
    _, after = fsspec.core.url_to_fs(str(target))
    for_each(lambda name: system.cp_file(name, after + name.removeprefix(before)), objects, NUM_THREADS)
    remove_objects(path, objects)


def objects_in(folder: epath.Path) -> Objects:
    """Returns the objects below a folder of a bucket as they are now, or the one of this name; {} if there are none."""
    system, name = fsspec.core.url_to_fs(str(folder))
    return system.find(name, detail=True)


def remove_objects(folder: epath.Path, objects: Objects) -> None:
    """Removes objects that `objects_in` has seen in a folder.

    At gs:// an object that was written again since then stays, and is a FileExistsError: each request names the
    generation that it removes.
    """
    system, _ = fsspec.core.url_to_fs(str(folder))
    is_google = str(folder).startswith("gs://")

    def remove(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # an earlier request's answer was lost
            if not is_google:
                system.rm_file(name)
                return
            bucket, _, inside = name.partition("/")
            generation = objects[name]["generation"]
            system.call("DELETE", "b/{}/o/{}", bucket, inside, ifGenerationMatch=generation)

    for_each(remove, objects, NUM_THREADS)

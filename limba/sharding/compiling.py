"""Compiling where several processes run the same programs: who compiles, who waits, and the cache that they share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import cache_key, lru_cache  # no public names: the key of an entry, and how it is written
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

from limba.config import RestartError
from limba.config.waiting import waiting
from limba.sharding.exchange import gather_texts, own_part
from limba.storage.files import write_whole

COMPILING_SECONDS = 3600.0  # in which all processes compile, where a run sets no limit to a step


def share_cache() -> None:
    """Lets each process of a run on CPUs read the compiled programs of the first one; call it when all have joined.

    jax's key of an entry has a fingerprint of the topology. That of CPUs holds the instruction set and the number of
    the process, so each process had keys of its own, while only the first one writes entries. The fingerprint of a
    client that has not joined is that of the first process. One program is right for all of them: which part of the
    arrays it computes, and with whom it exchanges them, it is told when it is loaded and run.
    """
    hashed: Any = getattr(cache_key, "_hash_accelerator_config", None)
    if hashed is None or jax.process_count() == 1 or jax.default_backend() != "cpu":
        return
    alone = np.array(xla_client.make_cpu_client(num_devices=jax.local_device_count()).devices())
    cache_key._hash_accelerator_config = lambda key, devices: hashed(key, alone)


def keep_whole_entries() -> None:
    """Lets jax write an entry of a local cache atomically; it opens the file and writes, and never replaces a part."""
    put: Any = lru_cache.LRUCache.put
    if put.__module__ == __name__:
        return

    def put_whole(self: Any, key: str, value: bytes) -> None:
        path = f"{self.path}/{key}-cache"
        if "://" in path or getattr(self, "eviction_enabled", True):
            put(self, key, value)
        elif not os.path.exists(path):
            write_whole(path, value)

    lru_cache.LRUCache.put = put_whole


def compiled_together(
    function: Callable[..., Any], name: str, seconds: float | None, ready: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    """Returns a jitted function that first compiles, and then waits until all processes have; each calls it.

    `ready` is called when it is compiled, and has not run yet.

    The first process says how long it has been compiling. On CPUs of one machine with one cache it compiles alone, and
    the others read what it has kept. Elsewhere all compile at the same time, and those without the entries may be
    minutes later; some backends give up when processes come to an exchange more than 30 s apart. RestartError names a
    process that has not compiled within `seconds`.
    """
    own, _ = own_part()
    compiled: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not compiled:
            limit = COMPILING_SECONDS if seconds is None else seconds
            lower = getattr(function, "lower", None)  # what is compiled already has none
            try:
                with waiting(f"compiling {name}", shows=own == 0):
                    found = function if lower is None else _compiled_in_turn(lower(*arguments), name, limit)
                gather_texts(f"compiled/{name}", "", limit)
            except TimeoutError as error:
                raise RestartError(
                    f"While {name} was compiled, {error} (RunConfig.step_timeout_seconds); look at that process, and"
                    " start all of them again."
                ) from error
            compiled.append(found)
            ready()
        return compiled[0](*arguments)

    return call


def _compiled_in_turn(lowered: Any, name: str, seconds: float) -> Callable[..., Any]:
    places = gather_texts(f"cache/{name}", _place_of_cache(), seconds)
    if not places[0] or len(set(places)) > 1:
        return lowered.compile()
    ready = lowered.compile() if own_part()[0] == 0 else None
    gather_texts(f"compiled_first/{name}", "", seconds)
    return ready or lowered.compile()


def _place_of_cache() -> str:
    """Returns a text that processes have in common if they read the same folder on one machine; "" without a cache.

    Also "" on other devices than CPUs. GPUs' compiler tries its choices in all processes at the same time.
    """
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if jax.default_backend() != "cpu" or not folder or not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return ""
    if "://" in folder:
        return ""
    try:
        os.makedirs(folder, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return ""
    return f"{socket.gethostname()} {found.st_dev} {found.st_ino}"

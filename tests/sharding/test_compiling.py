"""How jax's entries of compiled programs are written. Which process writes and which reads is in test_multihost.py."""

import os
from pathlib import Path

import pytest
from jax._src import lru_cache

from limba.sharding import compiling


def test_an_entry_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed while it writes; jax never replaces what is there."""
    cache = lru_cache.LRUCache(str(tmp_path), max_size=-1)
    monkeypatch.setattr(lru_cache.LRUCache, "put", lru_cache.LRUCache.put)  # is what it was, after this test
    compiling.keep_whole_entries()
    compiling.keep_whole_entries()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            cache.put("a", b"program")
    assert cache.get("a") is None and not list(tmp_path.iterdir())
    cache.put("a", b"program")
    cache.put("a", b"another")
    assert cache.get("a") == b"program" and [path.name for path in tmp_path.iterdir()] == ["a-cache"]

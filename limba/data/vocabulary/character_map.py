"""The table of a SentencePiece model that says which characters become which: its `precompiled_charsmap`.

It is a double-array trie as Darts-clone writes it, and behind it the results, each ended by a zero byte.
"""

from __future__ import annotations

import struct

import numpy as np

NAMED = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")  # SentencePiece's own tables


def rules_of(precompiled: bytes) -> dict[str, str]:
    """Returns {text: replacement} of a model's `precompiled_charsmap`; {} if that is empty."""
    if not precompiled:
        return {}
    (size,) = struct.unpack_from("<I", precompiled)
    nodes = np.frombuffer(precompiled, "<u4", size // 4, 4)
    targets = precompiled[4 + size :]
    labels = np.arange(1, 256, dtype=np.uint32)
    rules: dict[str, str] = {}
    level = np.zeros(1, np.uint32)
    keys = [b""]
    while len(level):
        # Breadth first, a whole level at once: the trie has half a million nodes.
        node = nodes[level]
        bases = level ^ ((node >> 10) << ((node & 512) >> 6))
        for index in np.flatnonzero((node >> 8) & 1):
            start = int(nodes[bases[index]] & 0x7FFF_FFFF)
            rules[keys[index].decode()] = targets[start : targets.index(b"\0", start)].decode()
        children = bases[:, None] ^ labels
        is_child = nodes[np.minimum(children, len(nodes) - 1)] & 0x8000_00FF == labels
        parents, columns = np.nonzero(is_child & (children < len(nodes)))
        pairs = zip(parents.tolist(), columns.tolist(), strict=True)
        keys = [keys[parent] + bytes([column + 1]) for parent, column in pairs]
        level = children[parents, columns]
    return rules

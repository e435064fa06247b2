"""The table of a SentencePiece model that says which characters become which: its `precompiled_charsmap`.

It is a double-array trie as Darts-clone writes it, and behind it the results, each ended by a zero byte.
"""

from __future__ import annotations

import struct

import numpy as np

NAMED = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")  # SentencePiece's own tables


def rules_of(precompiled: bytes) -> dict[str, str]:
    """Returns {text: replacement} of a model's `precompiled_charsmap`; {} if that is empty.

    Four bytes give the size of the trie, whose nodes are uint32: bits 0 to 7 are a node's label, bit 8 says that a key
    ends here, bits 10 to 30 are the offset of its children, times 256 if bit 9 is set, and bit 31 marks a value. A
    child is at its parent's offset, XOR its label.
    """
    if not precompiled:
        return {}
    (size,) = struct.unpack_from("<I", precompiled)
    nodes = np.frombuffer(precompiled, "<u4", size // 4, 4)
    targets = precompiled[4 + size :]
    labels = np.arange(1, 256, dtype=np.uint32)
    rules: dict[str, str] = {}
    # Breadth first, a whole level at once: the trie has half a million nodes.
    level = np.zeros(1, np.uint32)  # the indices of its nodes
    keys = [b""]  # the key of each
    while len(level):
        node = nodes[level]
        bases = level ^ ((node >> 10) << ((node & 512) >> 6))
        for index in np.flatnonzero((node >> 8) & 1):
            start = int(nodes[bases[index]] & 0x7FFF_FFFF)
            rules[keys[index].decode()] = targets[start : targets.index(b"\0", start)].decode()
        children = bases[:, None] ^ labels
        has_label = nodes[np.minimum(children, len(nodes) - 1)] & 0x8000_00FF == labels
        is_child = has_label & (children < len(nodes))
        parents, columns = np.nonzero(is_child)
        keys = [keys[parent] + bytes([column + 1]) for parent, column in zip(parents, columns, strict=True)]
        level = children[parents, columns]
    return rules

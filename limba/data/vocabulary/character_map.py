"""The table of a SentencePiece model that says which characters become which: its `precompiled_charsmap`.

It is a double-array trie as Darts-clone writes it (Yata; sentencepiece's third_party/darts_clone/darts.h has the bits
of a unit), and behind it the values, each ended by a zero byte.
"""

from __future__ import annotations

import numpy as np

NAMED = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")  # SentencePiece's own tables
_LABELS = np.arange(1, 256, dtype=np.uint32)


def rules_of(charsmap: bytes) -> dict[str, str]:
    """Returns every rule of the table: what it replaces, and by what.

    >>> rules_of(b"")
    {}
    """
    if not charsmap:
        return {}
    size = int(np.frombuffer(charsmap[:4], "<u4")[0])
    units = np.frombuffer(charsmap[4 : 4 + size], "<u4")
    values = charsmap[4 + size :]
    found: dict[bytes, bytes] = {}
    waiting = [(int(_offset(units[0])), b"")]  # nodes whose children are not read yet, with the bytes up to them
    while waiting:
        node, key = waiting.pop()
        places = node ^ _LABELS
        places = places[places < len(units)]
        children = places[(units[places] & np.uint32(0x800000FF)) == (places ^ node)]
        for place in children.tolist():
            unit = units[place]
            child, longer = int(place ^ _offset(unit)), key + bytes([place ^ node])
            if unit >> 8 & 1:  # a key ends here
                begin = int(units[child] & np.uint32(0x7FFFFFFF))
                found[longer] = values[begin : values.index(b"\0", begin)]
            waiting.append((child, longer))
    return {key.decode(): value.decode() for key, value in found.items()}


def _offset(unit: np.uint32) -> int:
    number = int(unit)
    return (number >> 10) << ((number & (1 << 9)) >> 6)

"""Which ids a ByT5 has as its sentinels: the last bytes' own, from 258 down, or rows of their own above the bytes.

The published models have the first: T5X trains with seqio's ByteVocabulary without extra ids, whose last id is 258
(Xue et al. 2022, arXiv:2105.13626). transformers' ByT5Tokenizer writes `<extra_id_0>` as 259, a row that was never
trained. Limba's tokenizers name each sentinel with its id.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping

import numpy as np
from etils import epath

from limba.formats import limba_checkpoint, t5x
from limba.storage.files import read_text

LAST_BYTE = 258  # the id of 0xFF
NEVER_TRAINED = 1e-9  # of the highest row's squared gradients: Adafactor adds 1e-30 to a row's that has none
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
_EMBEDDING = "state/param_states/token_embedder/embedding/v_col"  # T5X's factor with one value a row


def extra_ids_of(about: Mapping[str, object]) -> int:
    """Returns how many rows of their own a ByT5Tokenizer's sentinels have; 0: they are the last bytes' ids.

    `about` is its tokenizer_config.json. As transformers writes them, with `<extra_id_0>` first, they are none.

    >>> counted_down = {"260": {"content": "<extra_id_0>"}, "259": {"content": "<extra_id_1>"}}
    >>> extra_ids_of({"added_tokens_decoder": counted_down}), extra_ids_of({"extra_ids": 125})
    (2, 0)
    """
    added = about.get("added_tokens_decoder")
    tokens = [(place, token.get("content")) for place, token in added.items()] if isinstance(added, dict) else []
    ids = {int(match[1]): int(place) for place, name in tokens if (match := _SENTINEL.fullmatch(str(name)))}
    return len(ids) if len(ids) > 1 and ids.get(0) == LAST_BYTE + len(ids) else 0


def extra_ids_at(root: epath.Path, extra_ids: int) -> int | None:
    """Returns the extra ids that the ByT5 at a path has learned: `extra_ids` where nothing speaks against them.

    A T5X checkpoint tells by Adafactor's averages which row of `<extra_id_0>` was ever trained; None if it does not.
    """
    found = t5x.checkpoints_of(root)
    if limba_checkpoint.is_own(root) or not (found or t5x.is_t5x(root)):
        in_folder = extra_ids_in(root)
        return extra_ids if in_folder is None else in_folder
    tree = t5x.open_checkpoint(found[max(found)] if found else root)
    rows = np.asarray(tree[_EMBEDDING]) if _EMBEDDING in tree else np.zeros(1)
    trained = np.flatnonzero(rows > NEVER_TRAINED * rows.max())
    return next((count for count in (extra_ids, 0) if LAST_BYTE + count in trained), None)


def extra_ids_in(folder: epath.Path) -> int | None:
    """Returns the extra ids of a ByT5 in a folder for transformers; None for another model.

    Raises InputError for a tokenizer_config.json that is no text.
    """
    about = {}
    for name in ("config.json", "tokenizer_config.json"):
        if (folder / name).exists():
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # whoever needs the file tells of it
                about |= json.loads(read_text(folder / name))
    return extra_ids_of(about) if str(about.get("tokenizer_class")).startswith("ByT5") else None

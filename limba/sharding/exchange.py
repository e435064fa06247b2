"""Short texts exchanged by the processes of a run, through the coordination service and not through the devices.

So any thread may do it while the devices compute, and every wait has a limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from jax._src import distributed

GRACE_SECONDS = 60.0  # after the first process's limit, for its answer to the others


def own_part() -> tuple[int, int]:
    """Returns (this process's number, how many there are); unlike jax's functions it starts no device."""
    state = distributed.global_state
    return (0, 1) if state.client is None else (state.process_id, state.num_processes or 1)


def gather_texts(name: str, text: str, seconds: float) -> Sequence[str]:
    """Returns the texts of all processes, in their order; all call it, with the same `name`, on any thread.

    The same texts are returned everywhere; a name may be used again. Raises TimeoutError, which names the process, if
    one has not called within `seconds`.

    >>> gather_texts("example", "only one", 1.0)
    ['only one']
    """
    own, number = own_part()
    if number == 1:
        return [text]
    client: Any = distributed.global_state.client
    name = f"{name}/{client.key_value_increment(f'limba/{name}/calls_of_{own}', 1)}"
    client.key_value_set(f"limba/{name}/{own}", text, allow_overwrite=True)
    if own == 0:
        texts, late, deadline = [text], [], time.monotonic() + seconds
        for index in range(1, number):
            left = max(0.1, deadline - time.monotonic())
            try:
                texts.append(_get(client, f"limba/{name}/{index}", left))
            except TimeoutError:
                late.append(index)
        client.key_value_set(f"limba/{name}/all", json.dumps([texts, late]), allow_overwrite=True)
    else:
        try:
            texts, late = json.loads(_get(client, f"limba/{name}/all", seconds + GRACE_SECONDS))
        except TimeoutError:
            late = [0]
    if late:
        processes = f"process{'es' if len(late) > 1 else ''} {', '.join(map(str, late))}"
        raise TimeoutError(f"{processes} gave no answer within {seconds:,.0f} s")
    return texts


def forget_texts(name: str) -> None:
    """Frees the texts of a name and of those below it; call it in the first process, when all have gathered them."""
    own, number = own_part()
    client: Any = distributed.global_state.client
    if number > 1 and own == 0:
        client.key_value_delete(f"limba/{name}/")


def _get(client: Any, key: str, seconds: float) -> str:
    try:
        return client.blocking_key_value_get(key, int(seconds * 1000))
    except Exception as error:
        if "DEADLINE_EXCEEDED" in str(error) or isinstance(error, TimeoutError):
            raise TimeoutError(key) from error
        raise

"""The texts that a run writes at each evaluation for the prompts of its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from limba.config import EvaluationConfig
from limba.data.vocabulary.load import num_sentinels, sentinel_ids
from limba.inference.gaps import pieces_of
from limba.inference.generate import Gaps, Writer, Written, ids_of, prompt_ids
from limba.inference.infill import join_infill
from limba.model import Network


def sampler(
    network: Network, mesh: Mesh, vocabulary: Any, config: EvaluationConfig, is_prefix: bool = False
) -> Callable[[Any], dict[str, list[str]]] | None:
    """Returns a function from the parameters to each prompt's texts; None without prompts.

    A decoder-only model continues a prompt, with `is_prefix` read as the inputs of its rows; a T5 fills its gaps
    (<extra_id_0> and so on), whose texts are then in [brackets]. A fill begins with a word or a good part of one
    (`gaps.is_word`), so that no gap is left empty. Raises InputError for a prompt that the model cannot take.
    """
    prompts, continues = config.prompts, network.config.is_decoder_only
    if not prompts:
        return None
    groups = mesh.shape["data"] * mesh.shape["fsdp"]
    sampling = config.sampling if continues else dataclasses.replace(config.sampling, ban_sentinels=False)
    rows = -(-len(prompts) // groups) * groups
    writer = Writer(network, mesh, vocabulary, sampling, rows, is_prefix, gaps=_gaps(network, vocabulary))
    ids = prompt_ids if continues else ids_of
    inputs = [ids(prompt, vocabulary) for prompt in prompts]
    writer.check(inputs)
    sentinels = [] if continues else sentinel_ids(vocabulary, num_sentinels(vocabulary))

    def text_of(read: np.ndarray, written: Written) -> str:
        if continues:
            return written.text
        return join_infill(read, written.ids, np.asarray(sentinels), vocabulary, int(vocabulary.eos_id))

    def texts(params: Any) -> dict[str, list[str]]:
        found = zip(prompts, inputs, writer.write_all(params, inputs), strict=True)
        return {prompt: [text_of(read, each) for each in several] for prompt, read, several in found}

    return texts


def _gaps(network: Network, vocabulary: Any) -> Gaps | None:
    """Returns which ids begin a T5's fills; None for a language model, and where no piece could."""
    if network.config.is_decoder_only:
        return None
    pieces = pieces_of(vocabulary, network.config.vocab_size)
    is_sentinel, words = np.zeros(network.config.vocab_size, bool), pieces.is_text & pieces.is_word
    may_begin = words if words.any() else pieces.is_text & pieces.has_letter  # as in a vocabulary of bytes
    is_sentinel[[place for place in pieces.sentinels if place < len(is_sentinel)]] = True
    return Gaps(is_sentinel, may_begin) if may_begin.any() else None

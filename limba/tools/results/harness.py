"""lm-evaluation-harness's tasks for any model that `limba.load` opens: `limba results lm-eval run --model limba …`."""

# pyright: reportMissingImports=false
# (lm_eval comes with the extra `harness`)

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from limba.api import PieceTable, load
from limba.config import InputError

logger = logging.getLogger(__name__)

LONGEST = 1_024  # tokens that a model without learned positions reads at once
Scored = tuple[tuple[str, str], list[int], list[int]]  # the harness's texts, ids of the context and of what is scored


@register_model("limba")
class LimbaLM(TemplateLM):
    """A model by its path: `--model limba --model_args pretrained=runs/ro`.

    A language model's context and continuation are one sequence after the start id, which is read once and never
    scored; where it learned pairs, the context is an input, which has an end. A T5 reads the context and writes the
    continuation; with `sentinels` it reads `CONTEXT <extra_id_0>` and writes `<extra_id_0> CONTINUATION`, as one that
    has only learned to fill gaps does. Without the argument it does so where the run, or the record in the folder that
    was exported from it, says that it has learned nothing else. From an empty context a T5 reads only the gap, or
    nothing but the end of sequence. Sentinels and ends are not scored.
    """

    def __init__(self, pretrained: str, batch_size: int | str = 8, sentinels: bool | None = None, **options: object):
        super().__init__()
        self.trained = load(pretrained)
        network = self.trained.network.config
        if network.is_encoder and not network.predicts_next:
            raise InputError(
                f"{pretrained} is an encoder, which writes no text and which lm-evaluation-harness has no way to score;"
                " limba results measures minimal pairs and pseudo bits per byte of it."
            )
        self.trained = self.trained.decoder  # of a hybrid
        self.backend = "causal" if network.is_decoder_only else "seq2seq"
        self._vocabulary = self.trained.vocabulary
        self._special = self.trained.special_ids
        self._rows = self.trained.rows(int(batch_size) if str(batch_size).isdecimal() else 8)
        self.sentinels = self.backend == "seq2seq" and (self._fills_gaps() if sentinels is None else sentinels)

    def _fills_gaps(self) -> bool:
        """Returns whether the T5 is scored with sentinels, and says it: the same model has other figures without."""
        if self.trained.only_fills_gaps:
            logger.warning(
                "%s is scored with sentinels, as a gap is filled: it has learned to fill gaps, and to write no other"
                " text. sentinels=False in --model_args scores it without.",
                self.trained.path,
            )
            return True
        logger.warning(
            "%s is scored without sentinels, as a text is written: neither a run nor a record of its export says that"
            " it has only learned to fill gaps. sentinels=True in --model_args scores it with.",
            self.trained.path,
        )
        return False

    @property
    def eot_token_id(self) -> int:
        if self._special.end is None:
            raise InputError(f"{self.trained.path} has no end of sequence, which the harness needs (eos_token_id).")
        return self._special.end

    @property
    def prefix_token_id(self) -> int:
        return self.eot_token_id if self._special.start is None else self._special.start

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: object) -> list[int]:
        """Returns the ids of a text, without a start or an end."""
        return [int(token) for token in self._vocabulary.encode(string)]

    def _pair(self, context: Sequence[int], scored: Sequence[int], is_one_text: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids that the network reads and writes; with `is_one_text` they are parts of a text, and no pair.

        What has no context is a text too.
        """
        start = self.prefix_token_id
        if context and context[0] == start:  # as the harness begins a text, or a window of it
            context = context[1:]
        if self.backend == "causal":
            special = self._special
            if is_one_text or not context:
                special = dataclasses.replace(special, input_end=None)
            read = special.prompt(context, ends=False) or [start]
            write = [*scored]
        else:
            gap = PieceTable(self._vocabulary).sentinels[:1] if self.sentinels else []
            read = self._special.framed([*context, *gap])
            write = [*gap, *scored]
        return np.asarray(read, np.int32), np.asarray(write, np.int32)

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], is_one_text: bool = False, **options: object
    ) -> list[tuple[float, bool]]:
        results = []
        for start in range(0, len(requests), self._rows):
            part = requests[start : start + self._rows]
            pairs = [self._pair(context, scored, is_one_text) for _, context, scored in part]
            for logits, (_, _, scored) in zip(self.trained.logits_of_ids(pairs, self._rows), part, strict=True):
                rows = logits[len(logits) - len(scored) :].astype(np.float64)  # not the sentinel's
                rows -= rows.max(axis=1, keepdims=True)
                likelihoods = rows[range(len(scored)), scored] - np.log(np.exp(rows).sum(axis=1))
                results.append((float(likelihoods.sum()), bool((rows.argmax(axis=1) == scored).all())))
        return results

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log likelihood of each text; long ones in windows, each of whose tokens is scored once."""
        results = []
        for request in requests:
            windows = [(("", ""), *window) for window in self._windows(*request.args)]
            scores = self._loglikelihood_tokens(windows, is_one_text=True)
            results.append(sum(likelihood for likelihood, _ in scores))
        return results

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        ids = self.tok_encode(text)
        longest = self.trained.network.config.max_length or LONGEST
        for window in get_rolling_token_windows(ids, self.prefix_token_id, longest, 1):
            yield make_disjoint_window(window)

    def _continuation(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids that a language model wrote, up to the first end."""
        ends = [index for index, token in enumerate(ids) if token in self._special.ends]
        written = [int(token) for token in ids[: ends[0] if ends else len(ids)]]
        if self._special.is_published:
            return self._vocabulary.text_of(written)
        return self._vocabulary.decode([token for token in written if token > 0])

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns what the model writes after each context, greedily, up to the first of the texts that end it."""
        answers = []
        for context, choices in (request.args for request in requests):
            until = choices.get("until") or []
            limit = int(choices.get("max_gen_toks", 256))
            prompt = f"{context} <extra_id_0>" if self.sentinels else context
            samples = self.trained.samples(
                [prompt], max_tokens=limit, sample=False, num_beams=1, ban_sentinels=not self.sentinels
            )
            text = samples[0][0].text if self.backend == "seq2seq" else self._continuation(samples[0][0].ids.tolist())
            text = text.partition("<extra_id_0>")[2].partition("<extra_id_1>")[0] if self.sentinels else text
            for stop in [until] if isinstance(until, str) else until:
                text = text.partition(stop)[0] if stop else text
            answers.append(text.strip() if self.sentinels else text)
        return answers


def run(argv: Sequence[str]) -> None:
    """Runs the harness's own command line, which knows the model `limba` now."""
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *argv]
    cli_evaluate()

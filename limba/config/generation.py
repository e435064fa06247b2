"""How text is generated."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TypedDict, Unpack

from limba.config import kinds
from limba.config.errors import positive, require


class GenerationFields(TypedDict, total=False):
    """The fields of GenerationConfig as keyword arguments."""

    max_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    sample: bool
    temperature: float
    top_k: int | None
    top_p: float | None
    num_samples: int
    no_repeat_ngram_size: int
    ban_sentinels: bool
    banned_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class GenerationConfig:
    """How text is generated, token by token, by the rules of transformers' `generate` (`limba/inference/search.py`).

    Greedy by default. `num_beams` above 1 is beam search, `sample` draws each token; ConfigError for both at once.
    With temperature 0 decoding is greedy; `sample`, `top_k` and `top_p` have no effect.

    >>> GenerationConfig(temperature=0, sample=True, top_k=20) == GenerationConfig()
    True
    """

    max_tokens: int = 128  # written for each input at most, the end of sequence included
    num_beams: int = 1
    length_penalty: float = 1.0  # a beam's score is its log probability / length^penalty
    early_stopping: bool | str = False  # True: once num_beams have ended; False: when better is unlikely; 'never'
    sample: bool = False
    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None  # draw from the k most likely tokens
    top_p: float | None = None  # draw from the most likely tokens that together have this probability
    num_samples: int = 1  # texts for each input: sampled ones, or the best beams
    no_repeat_ngram_size: int = 0  # no n-gram of this size is written twice; 0: any may be
    ban_sentinels: bool = True  # <extra_id_…> are not text; False to fill gaps
    banned_ids: tuple[int, ...] = ()
    seed: int = 0  # of the samples; an input's samples do not depend on its batch

    def __post_init__(self) -> None:
        require(
            isinstance(self.temperature, int | float) and 0 <= self.temperature < math.inf,
            "GenerationConfig.temperature",
            f"is {self.temperature!r}; give a number above 0, or 0 for greedy.",
        )
        kinds.check(self, of_64_bits=("seed",))
        object.__setattr__(self, "banned_ids", tuple(self.banned_ids))
        if self.temperature == 0:
            for name, value in (("sample", False), ("temperature", 1.0), ("top_k", None), ("top_p", None)):
                object.__setattr__(self, name, value)
        require(
            isinstance(self.temperature, int | float) and 0 < self.temperature < math.inf,
            "GenerationConfig.temperature",
            f"is {self.temperature!r}; give a number above 0, or 0 for greedy.",
        )
        positive(self, "max_tokens", "num_beams", "num_samples")
        require(
            not (self.sample and self.num_beams > 1),
            "GenerationConfig.sample",
            f"is True with num_beams {self.num_beams}; set num_beams to 1, or sample to False.",
        )
        require(
            self.sample or self.num_samples <= self.num_beams,
            "GenerationConfig.num_samples",
            f"is {self.num_samples}, more than GenerationConfig.num_beams {self.num_beams}; raise that, or sample with"
            " GenerationConfig.temperature above 0.",
        )
        require(
            self.early_stopping in (True, False, "never"),
            "GenerationConfig.early_stopping",
            f"is {self.early_stopping!r}; give True, False or 'never'.",
        )
        if self.top_k is not None:
            positive(self, "top_k")
        require(
            self.top_p is None or 0 < self.top_p <= 1,
            "GenerationConfig.top_p",
            f"is {self.top_p!r}; give a probability above 0, at most 1, or None.",
        )
        unused = self.temperature != 1.0 or self.top_k is not None or self.top_p is not None
        require(
            self.sample or not unused,
            "GenerationConfig.sample",
            "is False, and temperature, top_k and top_p are only for sampling; set sample to True.",
        )
        for name, value in (("no_repeat_ngram_size", self.no_repeat_ngram_size), ("seed", self.seed)):
            require(
                isinstance(value, int) and value >= 0,
                f"GenerationConfig.{name}",
                f"is {value!r}; give a whole number, 0 or more.",
            )
        require(
            all(isinstance(i, int) and i >= 0 for i in self.banned_ids),
            "GenerationConfig.banned_ids",
            f"is {self.banned_ids!r}; give token ids, 0 or more.",
        )

    def replaced(self, **fields: Unpack[GenerationFields]) -> GenerationConfig:
        """Returns a copy with these fields; sampling choices turn `sample` on, `num_beams` above 1 turns it off.

        >>> GenerationConfig().replaced(temperature=0.6, top_k=20).sample
        True
        >>> GenerationConfig(sample=True, top_k=20).replaced(num_beams=4).sample
        False
        """
        sample = fields.get("sample")
        if sample is None and any(fields.get(name) is not None for name in ("temperature", "top_k", "top_p")):
            fields = {**fields, "sample": True}
        elif sample is False or (sample is None and fields.get("num_beams", 1) > 1):
            fields = {"sample": False, "temperature": 1.0, "top_k": None, "top_p": None, **fields}
        return dataclasses.replace(self, **fields)

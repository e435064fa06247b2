"""How text is generated."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from limba.config import kinds
from limba.config.errors import one_of, positive, require

LONG_INPUTS = ("segments", "cut", "refuse")


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
    long_inputs: str | None


@dataclass(frozen=True)
class GenerationConfig:
    """How text is generated, token by token, by the rules of transformers' `generate` (`limba/inference/search.py`).

    Greedy by default. `num_beams` above 1 is beam search, `sample` draws each token; ConfigError for both at once.
    With temperature 0 decoding is greedy; `sample`, `top_k` and `top_p` have no effect.

    >>> GenerationConfig(temperature=0, sample=True, top_k=20) == GenerationConfig()
    True
    """

    max_tokens: int = 128  # written for each input at most, the end of sequence included
    num_beams: int = 1  # above 1: beam search
    length_penalty: float = 1.0  # a beam's score is its log probability / length^penalty
    early_stopping: bool | str = False  # True: once num_beams have ended; False: when better is unlikely; 'never'
    sample: bool = False  # True: each token is drawn
    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None  # draw from the k most likely tokens
    top_p: float | None = None  # draw from the most likely tokens that together have this probability
    num_samples: int = 1  # texts for each input: sampled ones, or the best beams
    no_repeat_ngram_size: int = 0  # no n-gram of this size is written twice; 0: any may be
    ban_sentinels: bool = True  # <extra_id_…> are not text; False to fill gaps
    banned_ids: tuple[int, ...] = ()  # ids that are never generated
    seed: int = 0  # of the samples; an input's samples do not depend on its batch
    # A T5's inputs of more tokens than the task's length: 'segments' (cut at line and sentence ends, generated for each
    # part, joined again), 'cut' or 'refuse'; None: what the task says, which is 'cut' unless it says 'segments'.
    long_inputs: str | None = None

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
        if self.long_inputs is not None:
            one_of(self, "long_inputs", LONG_INPUTS)
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
        """Returns a copy with these fields, in which they count more than the other fields.

        `temperature`, `top_k` and `top_p` turn `sample` on and beams off, `num_beams` above 1 turns `sample` off.
        Where `num_samples` is not given, it is at most what can be had. Fields that are given and exclude each other
        raise ConfigError. With beams, `top_k=None` and `top_p=1` mean nothing.

        >>> GenerationConfig().replaced(temperature=0.6, top_k=20).sample
        True
        >>> GenerationConfig(sample=True, top_k=20).replaced(num_beams=4).sample
        False
        >>> GenerationConfig(num_beams=4, num_samples=4).replaced(temperature=0) == GenerationConfig()
        True
        """
        given: dict[str, Any] = dict(fields)
        sample, beams = given.get("sample"), given.get("num_beams")
        draws = [name for name in ("temperature", "top_k", "top_p") if given.get(name) is not None]
        if beams is not None and beams > 1 and given.get("top_p") == 1:
            draws.remove("top_p")
        if sample is None and draws:
            given = {"num_beams": 1, **given, "sample": True}
        elif sample is False or (sample is None and beams is not None and beams > 1):
            given = {**given, "sample": False, "temperature": 1.0, "top_k": None, "top_p": None}
            given |= {name: fields[name] for name in draws}
        elif sample is True:
            given = {"num_beams": 1, **given}
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)} | given
        if "num_samples" not in given and not (values["sample"] and values["temperature"] != 0):
            most = values["num_beams"]
            given["num_samples"] = min(self.num_samples, most) if kinds.fits(most, int) and most > 0 else 1
        return dataclasses.replace(self, **given)

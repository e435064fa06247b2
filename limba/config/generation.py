"""How text is generated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, Unpack

from limba.config import kinds
from limba.config.errors import InputError, did_you_mean, require
from limba.config.kinds import Limit, NonNegativeInt, PositiveInt

LONG_INPUTS = ("segments", "cut", "refuse")
Temperature = Annotated[float, Limit(lambda value: value >= 0, "a number above 0, or 0 for greedy")]
Probability = Annotated[float, Limit(lambda value: 0 < value <= 1, "a probability above 0, at most 1")]


class GenerationFields(TypedDict, total=False):
    """The fields of GenerationConfig as keyword arguments."""

    max_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    sample: bool
    temperature: float
    top_k: int | None
    top_p: float | None
    num_samples: int
    no_repeat_ngram_size: int
    ban_sentinels: bool
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

    max_tokens: PositiveInt = 128  # written for each input at most, the end of sequence included
    num_beams: PositiveInt = 1  # above 1: beam search
    length_penalty: float = 1.0  # a beam's score is its log probability / length^penalty
    # True: once num_beams have ended; False: when better is unlikely; 'never'
    early_stopping: bool | Literal["never"] = False
    sample: bool = False  # True: each token is drawn
    temperature: Temperature = 1.0  # 0: greedy
    top_k: PositiveInt | None = None  # draw from the k most likely tokens
    top_p: Probability | None = None  # draw from the most likely tokens that together have this probability
    num_samples: PositiveInt = 1  # texts for each input: sampled ones, or the best beams
    no_repeat_ngram_size: NonNegativeInt = 0  # no n-gram of this size is written twice; 0: any may be
    ban_sentinels: bool = True  # <extra_id_…> are not text; False to fill gaps
    seed: NonNegativeInt = 0  # of the samples; an input's samples do not depend on its batch
    # A T5's inputs of more tokens than the task's length: 'segments' (cut at line and sentence ends, generated for each
    # part, joined again), 'cut' or 'refuse'; None: what the task says, which is 'cut' unless it says 'segments'.
    long_inputs: Annotated[str, kinds.choice(*LONG_INPUTS)] | None = None

    def __post_init__(self) -> None:
        kinds.check(self, of_64_bits=("seed",))
        if self.temperature == 0:
            for name, value in (("sample", False), ("temperature", 1.0), ("top_k", None), ("top_p", None)):
                object.__setattr__(self, name, value)
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
        unused = self.temperature != 1.0 or self.top_k is not None or self.top_p is not None
        require(
            self.sample or not unused,
            "GenerationConfig.sample",
            "is False, and temperature, top_k and top_p are only for sampling; set sample to True.",
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
        choices = dict[str, object](fields)
        names = [entry.name for entry in dataclasses.fields(self)]
        for name in choices:
            if name not in names:
                raise InputError(f"GenerationConfig has no field {name!r}{did_you_mean(name, names)}")
        sample = fields.get("sample")
        beams = fields.get("num_beams")
        draws = [name for name in ("temperature", "top_k", "top_p") if choices.get(name) is not None]
        if beams is not None and beams > 1 and choices.get("top_p") == 1:
            draws.remove("top_p")
        if sample is None and draws:
            choices = {"num_beams": 1, **choices, "sample": True}
        elif sample is False or (sample is None and beams is not None and beams > 1):
            choices = {**choices, "sample": False, "temperature": 1.0, "top_k": None, "top_p": None}
            choices |= {name: fields[name] for name in draws}
        elif sample is True:
            choices = {"num_beams": 1, **choices}
        values = {name: getattr(self, name) for name in names} | choices
        if "num_samples" not in choices and not (values["sample"] and values["temperature"] != 0):
            most = values["num_beams"]
            choices["num_samples"] = min(self.num_samples, most) if isinstance(most, int) and most > 0 else 1
        return dataclasses.replace(self, **choices)

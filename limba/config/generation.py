"""How text is generated."""

from __future__ import annotations

from dataclasses import dataclass

from limba.config.errors import positive, require


@dataclass(frozen=True)
class GenerationConfig:
    """How text is generated, token by token, by the rules of transformers' `generate` (`limba/inference/search.py`).

    Greedy by default; `num_beams` above 1 searches by beams, `sample` draws. Raises ConfigError for both at once.
    """

    max_tokens: int = 128  # written per input at most, the end of sequence included
    num_beams: int = 1
    length_penalty: float = 1.0  # a beam's score is its log probability / length^penalty
    early_stopping: bool | str = False  # True: once num_beams have ended; False: when better is unlikely; 'never'
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None  # draw among that many likeliest tokens
    top_p: float | None = None  # draw among the likeliest tokens that together have this probability
    num_samples: int = 1  # texts per input: drawn ones, or the best of the beams
    no_repeat_ngram_size: int = 0  # 0: any may be repeated
    ban_sentinels: bool = True  # <extra_id_…> are no text; False for filling gaps
    banned_ids: tuple[int, ...] = ()
    seed: int = 0  # of draws; an input's draws do not depend on its batch

    def __post_init__(self) -> None:
        object.__setattr__(self, "banned_ids", tuple(self.banned_ids))
        positive(self, "max_tokens", "num_beams", "num_samples")
        require(
            not (self.sample and self.num_beams > 1),
            "GenerationConfig.sample",
            f"is True with num_beams {self.num_beams}; draw with num_beams 1, or search without.",
        )
        require(
            self.sample or self.num_samples <= self.num_beams,
            "GenerationConfig.num_samples",
            f"is {self.num_samples}, more than num_beams {self.num_beams} gives; raise num_beams, or set sample.",
        )
        require(
            self.early_stopping in (True, False, "never"),
            "GenerationConfig.early_stopping",
            f"is {self.early_stopping!r}; give True, False or 'never'.",
        )
        require(
            self.temperature > 0,
            "GenerationConfig.temperature",
            f"is {self.temperature!r}; give a number above 0 (greedy is sample False).",
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

"""Goes on with prompts by a decoder-only model: `python -m launch.generate --help`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.cli.data import task_flags
from limba.config import GenerationConfig, InputError, environment

ABOUT = """Writes on behind prompts, on a CPU too, with keys and values kept.

    python -m launch.generate --model=MODEL_DIR --prompt='Once upon a time' --temperature=0.6 --top_k=20 --num=3
    python -m launch.generate --model=MODEL_DIR/huggingface/step_1000 --prompt=... --temperature=0

--model is a run of ours, one of its checkpoints, or a folder or hub id for transformers (Llama or GPT-2). The same seed
gives the same texts."""


def _arguments(argv: Sequence[str]) -> Any:
    parser = task_flags.Parser("generate", ABOUT)
    parser.add_argument(
        "--model", required=True, metavar="DIR|id", help="a run directory, a checkpoint, a folder or a hub id"
    )
    parser.add_argument("--step", type=int, help="of a run's checkpoints; the newest unless given")
    parser.add_argument("--vocabulary", metavar="PATH|byte", help="instead of the model's own")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="may be given several times; stdin's lines")
    parser.add_argument("--num", type=int, default=1, help="texts for each prompt")
    parser.add_argument("--max_tokens", type=int, default=128, help="pieces that are written at most")
    parser.add_argument("--temperature", type=float, default=0.6, help="0: the likeliest piece each time")
    parser.add_argument("--top_k", type=int, default=20, help="draw among so many likeliest pieces; 0: all")
    parser.add_argument("--top_p", type=float, default=1.0, help="draw among those that together have this share")
    parser.add_argument("--no_repeat_ngram_size", type=int, default=0, help="never write so many pieces twice; 0: may")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _generation(arguments: Any) -> GenerationConfig:
    if arguments.temperature < 0 or arguments.top_k < 0:
        raise InputError(
            f"--temperature is {arguments.temperature} and --top_k {arguments.top_k}; give numbers of 0 or more."
        )
    draws = arguments.temperature > 0
    if not draws and arguments.num > 1:
        raise InputError(f"--num is {arguments.num} and --temperature 0 gives one text; give a temperature above 0.")
    return GenerationConfig(
        max_tokens=arguments.max_tokens,
        sample=draws,
        temperature=arguments.temperature if draws else 1.0,
        top_k=arguments.top_k or None,
        top_p=arguments.top_p,
        num_samples=arguments.num,
        no_repeat_ngram_size=arguments.no_repeat_ngram_size,
        seed=arguments.seed,
    )


def _opened(path: str, step: int | None, vocabulary: str | None) -> tuple[Any, Any, Any]:
    """Returns (ModelConfig, arrays by T5X's names, seqio's vocabulary) of a run or a folder; ConfigError."""
    from limba.cli.use import huggingface as exports
    from limba.cli.use import sources
    from limba.data.vocabulary.load import load_vocabulary
    from limba.formats import hub, huggingface

    folder = Path(path).expanduser()
    if "://" not in path and not folder.exists() and hub.is_id(path):
        folder = Path(hub.download(path))
    if "://" not in path and huggingface.is_huggingface(folder):
        model = huggingface.model_config(folder)
        _check_network(model, path)
        inside = next((name for name in ("spiece.model", "tokenizer.json") if (folder / name).is_file()), None)
        if vocabulary is None and inside is None:
            raise InputError(
                f"{path} holds no spiece.model and no tokenizer.json; give its vocabulary as --vocabulary=PATH|byte."
            )
        loaded = load_vocabulary(vocabulary or f"{folder}/{inside}", extra_ids=0)
        return model, huggingface.open_folder(folder, model), loaded
    source = sources.open_source(path, None)
    _check_network(source.model, path)
    (chosen,) = exports.chosen_steps("latest" if step is None else str(step), source.steps)
    choices = exports.Choices(("pytorch",), "float32", vocabulary, 0, checks=False)
    found = exports.vocabulary_of(source, choices)
    if found is None:
        raise InputError(f"{path} names no vocabulary; give --vocabulary=PATH.")
    return source.model, source.arrays(chosen), found[2]


def _check_network(model: Any, path: str) -> None:
    if not model.is_decoder_only:
        raise InputError(f"{path} is an encoder-decoder, which answers inputs and goes on with nothing; name another.")


def run(argv: Sequence[str]) -> None:
    """Prints each prompt's texts; raises ConfigError."""
    arguments = _arguments(argv)
    config = _generation(arguments)
    if arguments.prompt is None and sys.stdin.isatty():
        raise InputError("There is no prompt; give --prompt=TEXT, or lines on standard input.")
    with environment.quiet_imports():
        from limba.export.proof import parameters
        from limba.inference.continuations import continuations
        from limba.model import Network

        model, arrays, vocabulary = _opened(arguments.model, arguments.step, arguments.vocabulary)
    prompts = arguments.prompt or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise InputError("There is no prompt; give --prompt=TEXT, or lines on standard input.")
    network = Network(dataclasses.replace(model, dtype="float32", dropout_rate=0.0))
    params = parameters(arrays)
    for prompt, texts in zip(prompts, continuations(network, params, vocabulary, prompts, config), strict=True):
        print(f"== {prompt}")
        for number, text in enumerate(texts, 1):
            print(f"{number}. {text}" if len(texts) > 1 else text, flush=True)

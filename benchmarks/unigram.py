"""Perplexity of the unigram model on a run's validation split: `python -m benchmarks.unigram MODEL_DIR`.

What a model knows that only knows how often each piece occurs: a language model must be well under it. Counts are
of as many batches of the run's training stream as are asked for, one added to each piece's.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import sys
from collections.abc import Sequence

import numpy as np

from limba.cli import program
from limba.cli.data import task_flags
from limba.config import InputError, environment


def main(argv: Sequence[str]) -> None:
    parser = task_flags.Parser("unigram", __doc__, "benchmarks")
    parser.add_argument("model_dir")
    parser.add_argument("--batches", type=int, default=200, help="of the training stream")
    arguments = parser.parse_args(argv)
    if arguments.batches < 1:
        raise InputError(f"--batches is {arguments.batches}; give a whole number above 0.")
    with environment.quiet_imports():
        from limba.cli.use import sources
        from limba.data import streams, validation
        from limba.training.logging import read_metrics
    source = sources.open_source(arguments.model_dir, None)
    if source.run is None:
        raise InputError(f"{arguments.model_dir} is no run of Limba's, whose text could be counted; give a MODEL_DIR.")
    for module in source.modules:
        importlib.import_module(module)
    config = source.run.data
    task = streams.resolve_task(config)
    lengths = streams.derive_lengths(task, config.task_feature_lengths)
    counts = np.ones(task.output_features["targets"].vocabulary.vocab_size)
    shards = range(config.num_data_shards)
    with contextlib.closing(streams.TrainStream(task, lengths, config, shards)) as stream:
        for rows in itertools.islice(stream, arguments.batches):
            for part in rows.values():
                np.add.at(counts, part["targets"][part["targets"] > 0], 1)
    nats = -np.log(counts / counts.sum())
    batches = validation.validation_batches(task, lengths, config, source.run.evaluation.num_batches)
    weights = np.concatenate([batch["decoder_loss_weights"].ravel() for batch in batches])
    targets = np.concatenate([batch["decoder_target_tokens"].ravel() for batch in batches])
    unigram = math.exp(float((nats[targets] * weights).sum() / weights.sum()))
    print(f"unigram model: perplexity {unigram:,.2f} on {int(weights.sum()):,} pieces of the validation split")
    for record in read_metrics(arguments.model_dir):
        if record["kind"] == "validation":
            print(f"step {record['step']:,}: perplexity {record['perplexity']:,.2f}")


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))

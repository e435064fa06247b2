"""Perplexity of the unigram model on a run's validation split: `python -m benchmarks.unigram MODEL_DIR`.

A unigram model only knows how often each piece occurs; a language model's perplexity must be well below. Pieces are
counted in some batches of the run's training stream, and each count starts at one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Sequence

import numpy as np

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.unigram", __doc__ or "", "python")
    parser.add_argument("model_dir")
    parser.add_argument("--batches", type=int, default=200, help="batches of the training stream to count")
    arguments = parser.parse_args(argv)
    if arguments.batches < 1:
        raise InputError(f"--batches is {arguments.batches}; give a whole number above 0.")
    with environment.quiet_imports():
        from limba.data import run_data as validation
        from limba.data.objectives import derive_lengths
        from limba.data.stream import streams
        from limba.inference import source as sources
        from limba.training.metrics.logging import read_metrics
    source = sources.find(arguments.model_dir)
    if source.run is None:
        raise InputError(f"{arguments.model_dir} is not a Limba run; give a MODEL_DIR, whose text is counted.")
    config = source.run.data
    task = sources.task_of(source)
    lengths = derive_lengths(task, config.task_feature_lengths)
    counts = np.ones(task.output_features["targets"].vocabulary.vocab_size)
    shards = range(config.batch_size // config.rows_per_shard)
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

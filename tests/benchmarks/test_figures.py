"""FLOPs as computed by hand; wrong arguments of the benchmarks."""

import pytest

from benchmarks import compiled, convert, data_pipeline, generate, kill, peers, train_step
from limba.cli.gin import read_model
from limba.config import InputError
from limba.training.metrics.flops import flops_per_sequence

GFLOPS = {  # at 512/114, training
    ("small", 32_128): 106,
    ("base", 32_128): 425,
    ("base", 64_000): 442,
    ("base", 250_112): 540,
    ("large", 32_128): 1_466,
    ("large", 64_000): 1_488,
    ("large", 250_112): 1_619,
    ("xl", 32_128): 5_342,
}


@pytest.mark.parametrize(("size", "vocab_size"), GFLOPS)
def test_flops_of_a_sequence(size: str, vocab_size: int) -> None:
    config = read_model(f"gin/models/t5_1_1/{size}.gin", ["DROPOUT_RATE=0.0", f"VOCAB_SIZE={vocab_size}"])
    assert abs(flops_per_sequence(config, 512, 114) / 1e9 - GFLOPS[size, vocab_size]) <= 0.5


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        (peers, ["--torch", "--rounds=0"], "Rounds, steps, batch and lengths must be"),
        (generate, ["--rounds=0"], "Rounds, repeats"),
        (generate, ["--rounds=many"], "Argument --rounds: invalid int value: 'many'; --help"),
        (data_pipeline, ["--t5=/nope"], "/nope/t5/data/preprocessors.py does not exist; give --t5=CHECKOUT"),
        (data_pipeline, ["--undivided"], "t5/data/preprocessors.py does not exist; give --t5=CHECKOUT"),
        (data_pipeline, ["--in_tensorflow"], "t5/data/preprocessors.py does not exist; give --t5=CHECKOUT"),
        (data_pipeline, ["--tfds"], "t5/data/preprocessors.py does not exist; give --t5=CHECKOUT"),
        (data_pipeline, ["--tfds", "--undivided"], "--undivided and --tfds are 2 measurements; give one of them"),
        (convert, ["--size=base"], "There is no --folder; give an empty or new folder on the disk that is measured."),
        (convert, ["--folder=benchmarks"], "--folder=benchmarks is not empty"),
        (convert, ["--folder=new", "--model=/nope"], "--model=/nope is not a folder"),
        (convert, ["--folder=new", "--rounds=0"], "--rounds is 0; give 1 or more"),
        (train_step, ["--size"], "--size has no value; write --size=VALUE"),
        (kill, ["--steps=0"], "steps above 0"),
        (compiled, ["--field=nope=3"], "--field=nope=3 is not NAME=VALUE with a field of ModelConfig"),
        (compiled, ["--field=emb_dim"], "--field=emb_dim is not NAME=VALUE"),
        (compiled, ["--topology=cpu-8", "--size=tiny", "--batch=7"], "--batch=7 does not divide into 1 micro-batches"),
    ],
)
def test_bad_arguments_of_benchmarks_are_sentences(program, flags: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        program.main(flags)
    assert message in str(caught.value)

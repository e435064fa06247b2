"""Fine-tuning an open model: the update, the loss and the text are those of the run's own step, loss and search."""

import dataclasses

import jax
import numpy as np
import pytest

import limba
from limba.config import GenerationConfig, InputError, LossConfig, OptimizerConfig, ScheduleConfig
from limba.formats.names import flatten
from limba.inference.generate import Writer, features_of
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, state_shardings
from limba.training.step import Gradient, jit_train_step
from tests import tiny
from tests.export.runs import folder_of

SMALL = {"vocab_size": 1_024, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16, "num_decoder_layers": 1}


@pytest.fixture(params=["t5", "language model"])
def trained(request, vocabulary, tmp_path):
    model = tiny.model(**SMALL, num_encoder_layers=1) if request.param == "t5" else tiny.language_model(**SMALL)
    return limba.load(folder_of(model, vocabulary, tmp_path / "model"))


@pytest.mark.slow
def test_an_update_is_the_runs_own_and_the_model_stays_as_it_is(trained) -> None:
    before = {name: np.asarray(leaf) for name, leaf in flatten(trained.params).items()}
    tuning = trained.tuning(0.0, 4)
    pairs = [tuning.pair(text, "One of them", (8, 8)) for text in ("The first", "The second of them")]
    part = tuning.parts(pairs)[0]
    assert sorted(part.numbers) == [0, 1] and part.widths[0] == 32
    found = tuning.update(tuning.begin(), pairs, part, 0.01, jax.random.key(0))

    config = OptimizerConfig("adafactor", ScheduleConfig(base_learning_rate=0.01, factors="constant", warmup_steps=0))
    optimizer, network = make_optimizer(config, None), trained.network
    shardings = state_shardings(network, optimizer, trained.mesh, shard_update=False)
    step = jit_train_step(Gradient(network, LossConfig()), optimizer, make_schedule(config.schedule, None), shardings)
    params = jax.tree.map(lambda leaf: leaf.copy(), trained.params)
    state = TrainState(np.int32(0), params, optimizer.init(params))
    expected, _ = step(state, features_of(network, pairs, 4), jax.random.key(0))
    for name, leaf in flatten(found.params).items():
        np.testing.assert_allclose(leaf, flatten(expected.params)[name], atol=1e-6, err_msg=name)
    for name, leaf in flatten(trained.params).items():
        np.testing.assert_array_equal(leaf, before[name], err_msg=name)
    assert tuning.loss(found.params, pairs) < tuning.loss(trained.params, pairs)


def test_loss_and_text_are_those_of_the_model(trained) -> None:
    tuning = trained.tuning(0.1, 4)
    texts = ["The first", "The second of them is the one that was here", "A third"]
    pairs = [tuning.pair(text, "One of them", (64, 16)) for text in texts]
    nats = -trained.log_likelihoods([(text, "One of them") for text in texts]).sum()
    assert tuning.loss(trained.params, pairs) == pytest.approx(nats / sum(len(each[1]) for each in pairs), rel=1e-5)
    writer = Writer(trained.network, trained.mesh, trained.vocabulary, GenerationConfig(max_tokens=8), trained.rows(4))
    whole = writer.write_all(trained.params, [trained.tokenize(text) for text in texts])
    begins = [text if trained.network.config.is_decoder_only else "" for text in texts]
    written = tuning.write(trained.params, pairs, 8)
    assert [a + b for a, b in zip(begins, written, strict=True)] == [each[0].text for each in whole]


def test_each_pair_is_dealt_once_in_an_order_of_its_own(trained) -> None:
    tuning = trained.tuning(0.1, 4)
    pairs = [tuning.pair("one " * (number % 50), "two " * (number * 7 % 32), (60, 32)) for number in range(101)]
    orders = [tuning.parts(pairs, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    for parts in orders:
        assert sorted(number for part in parts for number in part.numbers) == list(range(101))
        assert sum(len(part.numbers) < trained.rows(4) for part in parts) == 1, "one batch is not whole"
    assert orders[0] == orders[1] != orders[2]
    widths = [sorted(part.widths for part in parts) for parts in orders]
    assert widths[0] == widths[2], "another order needs another program"


def test_an_encoder_is_refused(vocabulary, tmp_path) -> None:
    encoder = dataclasses.replace(tiny.language_model(**SMALL), attention_mask="bidirectional")
    with pytest.raises(InputError, match="is an encoder, which learns to write no text"):
        limba.load(folder_of(encoder, vocabulary, tmp_path / "model")).tuning(0.1, 4)

"""AdamW of a run that Hugging Face's flags describe, beside torch's AdamW with the groups of transformers' Trainer."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from transformers import Trainer

from limba.cli.flags import parse_args
from limba.config import ConfigError, OptimizerConfig, optimizer_config
from limba.formats import huggingface
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.training.optimizer import make_optimizer
from tests import tiny
from tests.model.test_huggingface import our_config, reference_model

STEPS = 8


def optimizer_of(folder: Path, **flags: object) -> OptimizerConfig:
    """Returns the optimizer of a JSON file of the masked language modeling script."""
    (folder / "corpus.txt").write_text("A text.\n")
    values = {"model_name_or_path": str(folder), "train_file": str(folder / "corpus.txt"), "tokenizer_name": "byte",
              "output_dir": str(folder / "run"), "max_steps": STEPS, "learning_rate": 0.01, "weight_decay": 0.3,
              "lr_scheduler_type": "constant", "max_seq_length": 64, **flags}  # fmt: skip
    config_json = {"model_type": "t5", "vocab_size": 384, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4,
             "num_layers": 1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config_json))
    values["config_name"] = str(folder / "config.json")
    del values["model_name_or_path"]
    (folder / "train.json").write_text(json.dumps(values))
    return parse_args([str(folder / "train.json")]).config.optimizer


@pytest.mark.parametrize("family", ["t5_1_0", "umt5"])
@pytest.mark.slow
def test_eight_steps_are_those_of_torch_with_the_trainers_groups(family: str, tmp_path: Path) -> None:
    ours = optimizer_of(tmp_path)
    model = reference_model(family)
    config = our_config(family)
    assert ours.name == "adamw" and ours.weight_decay == 0.3 and ours.clip_global_norm == 1.0
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # pyright: ignore[reportArgumentType]
    theirs = dict(model.named_parameters())
    rows = [row for row in huggingface.rows(config) if row.pytorch in theirs]
    assert any("relative_attention_bias" in name for name in theirs)
    groups = [
        {
            "params": [tensor for name, tensor in theirs.items() if (name in decayed) == is_decayed],
            "weight_decay": decay,
        }
        for is_decayed, decay in ((True, 0.3), (False, 0.0))
    ]
    torch_optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999), eps=1e-8)

    def stacked(values: dict[str, np.ndarray]) -> dict:
        return unflatten({name: jnp.asarray(value) for name, value in tiny.stack_layers(values).items()})

    def arrays(of: str) -> dict[str, np.ndarray]:
        values = {row.t5x: getattr(theirs[row.pytorch], of).detach().numpy().copy() for row in rows}
        turned = {row.t5x for row in rows if row.transposed}
        return {name: value.T if name in turned else value for name, value in values.items()}

    params = stacked(arrays("data"))
    chain = make_optimizer(ours, STEPS)
    state = chain.init(params)
    update = jax.jit(chain.update)
    numbers = np.random.default_rng(0)
    for _ in range(STEPS):
        for parameter in theirs.values():
            parameter.grad = torch.tensor(numbers.normal(size=tuple(parameter.shape)), dtype=torch.float32)
        gradients = stacked(arrays("grad"))
        torch.nn.utils.clip_grad_norm_(list(theirs.values()), 1.0)
        torch_optimizer.step()
        updates, state = update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    weights = unstack_layers(flatten(jax.device_get(params)))
    for name, value in arrays("data").items():
        np.testing.assert_allclose(weights[name], value, atol=2e-6, err_msg=name)


def test_adafactor_has_no_such_choice_and_a_wrong_pattern_is_named(tmp_path: Path) -> None:
    assert optimizer_of(tmp_path).undecayed == (".*relpos_bias",)
    assert optimizer_of(tmp_path, optim="adafactor").undecayed == ()
    with pytest.raises(ConfigError, match="OptimizerConfig.undecayed holds '\\[', which is not a regular expression"):
        optimizer_config("adamw", undecayed=("[",))

"""Encoders, as Limba writes them, in transformers 4.57.6: outputs of padded rows, and the cards' code.

It has no EuroBERT; what it has are ModernBERT's classes, and the class of a T5's encoder.
"""

import contextlib
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from limba.cli import convert
from limba.formats.names import unflatten
from limba.model import Network
from tests import tiny
from tests.compat import overlay
from tests.export.runs import write_run
from tests.model import test_encoder
from tests.tiny import stack_layers

pytestmark = pytest.mark.night
LIMIT = 2e-5
T5 = tiny.model(vocab_size=256, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=64, num_decoder_layers=0)
SHAPES = {
    "ModernBERT, masks": test_encoder.MODERN,
    "ModernBERT, biases": test_encoder.MODERNBERTS["modern, all biases"],
    "ModernBERT, states": dataclasses.replace(test_encoder.MODERN, has_logits=False),
    "T5": T5,
    "T5, tied": dataclasses.replace(T5, logits_via_embedding=True),
    "umT5": dataclasses.replace(T5, relative_bias_per_layer=True),
}
IN_OLD = """
import contextlib, io, json, os, sys
from pathlib import Path
import numpy as np, torch, transformers
assert transformers.__version__ == "4.57.6"
for folder in sorted(Path(sys.argv[1]).glob("*/step_5")):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, about = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    wrong = {kind: about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if about[kind]}
    assert not wrong, (folder, wrong)
    ids = torch.tensor(np.load(folder / "ids.npy")).long()
    with torch.no_grad():
        found = model.eval()(input_ids=ids, attention_mask=(ids > 0).long())
    np.save(folder / "by_4.npy", (found.logits if "logits" in found else found.last_hidden_state).numpy())
    code = (folder / "README.md").read_text().partition("```python\\n")[2].partition("```")[0]
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(code, {})
    assert shown.getvalue().strip(), folder
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    """A folder for each shape, with rows of ids, padded, beside it, Limba's outputs, and 4.57.6's."""
    shelf = tmp_path_factory.mktemp("encoders")
    ids = np.random.default_rng(0).integers(2, 800, (3, 40)).astype(np.int32)
    ids[0, 33:] = 0
    ids[2, 9:] = 0
    for name, shape in SHAPES.items():
        config = dataclasses.replace(shape, vocab_size=1024)
        run = shelf / "runs" / name
        params = unflatten(stack_layers(write_run(run, config)[5]))
        with contextlib.redirect_stdout(io.StringIO()):
            flags = [f"--vocabulary={vocabulary}", "--extra_ids=1", "--no_check"]
            convert.run([str(run), str(shelf / name), *flags])
        batch = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens"), ids)
        ours = jax.jit(Network(config).apply)(params, batch)
        np.savez(shelf / name / "ours.npz", ours=ours, real=ids > 0)
        np.save(shelf / name / "step_5" / "ids.npy", ids)
    environment = overlay.environment()
    script = [sys.executable, "-c", IN_OLD, str(shelf)]
    ended = subprocess.run(script, env=environment, cwd=overlay.ROOT, capture_output=True, text=True, check=False)
    assert not ended.returncode, ended.stderr[-3000:]
    return shelf


@pytest.mark.parametrize("name", SHAPES)
def test_4_57_gives_our_outputs_of_padded_rows(name: str, shelf: Path) -> None:
    outputs = np.load(shelf / name / "step_5" / "by_4.npy")
    with np.load(shelf / name / "ours.npz") as arrays:
        ours = arrays["ours"]
        real = arrays["real"]
    assert np.abs(ours[real]).max() > 0.3
    np.testing.assert_allclose(outputs[real], ours[real], atol=LIMIT * max(1, np.abs(ours[real]).max()), rtol=0)
    card = (shelf / name / "step_5" / "README.md").read_text()
    assert "transformers 4.57 and 5" in " ".join(card.split()), card
    assert "EuroBert" not in json.dumps(json.loads((shelf / name / "step_5" / "config.json").read_text()))

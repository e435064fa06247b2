"""One door: a model gives the same from every kind of path, and other paths are errors."""

import dataclasses
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import limba
from limba.config import DataConfig, InputError, NoModelError, RunConfig, saved_config
from limba.data.packing import model_features
from limba.export.huggingface import import_folder
from limba.formats import t5x
from limba.formats.names import unflatten
from limba.formats.t5x import network_of
from limba.inference.source import find
from tests import test_doctests, tiny
from tests.export.runs import arrays_of, write_run
from tests.http_server import ModelHubHandler, as_hub, serving

ROOT = Path(__file__).parent.parent.parent
SIZES = {"vocab_size": 384, "emb_dim": 64, "head_dim": 16, "mlp_dim": 96}
PAIRS = [("A text with <extra_id_0> gap.", "<extra_id_0> one"), ("", "ș"), ("Another text.", "x" * 40)]


def config_of(**changes: object) -> limba.ModelConfig:
    return tiny.model(**{**SIZES, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, of which the second is the T5X checkpoints' and the folder's model too."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    arrays = write_run(directory, config_of(), steps=(7, 9))[9]
    tree = {"state/step": np.int32(9), **{f"target/{name}": array for name, array in arrays.items()}}
    t5x.write_legacy(directory.parent / "legacy", 9, tree)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory.parent / "orbax" / "checkpoint_9" / "state", unflatten(tree))
    limba.load(directory, vocabulary="byte").save(directory.parent / "folder")
    return directory


@pytest.fixture
def hub_id(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(run.parent / "folder", tmp_path / "hub" / "me" / "model" / "main")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "hub", handler=ModelHubHandler) as server:
        as_hub(server, tmp_path / "cache", monkeypatch)
        yield "me/model"


@pytest.mark.slow
def test_every_kind_of_path_gives_the_same_logits(run: Path, hub_id: str) -> None:
    expected = limba.load(run, vocabulary="byte").logits(PAIRS)
    assert [array.shape for array in expected] == [(6, 384), (3, 384), (41, 384)]
    places = [run / "checkpoints" / "9", *(run.parent / name for name in ("legacy", "orbax", "folder")), hub_id]
    for path in [*places, run.parent / "legacy" / "checkpoint_9"]:
        own_vocabulary = path in (hub_id, run.parent / "folder")
        model = limba.load(path, vocabulary=None if own_vocabulary else "byte")
        for logits_now, logits in zip(model.logits(PAIRS), expected, strict=True):
            np.testing.assert_allclose(logits_now, logits, atol=1e-5, err_msg=str(path))
    other = limba.load(run, step=7, vocabulary="byte")
    assert other.step == 7 and np.abs(other.logits(PAIRS)[0] - expected[0]).max() > 0.1
    with pytest.raises(InputError, match=r"no checkpoint at step 8 in .*choose from \[7, 9\]"):
        limba.load(run, step=8)


@pytest.mark.slow
def test_scores_and_vectors_do_not_depend_on_the_batch(run: Path) -> None:
    model = limba.load(run, vocabulary="byte")
    scores = model.score(PAIRS)
    for pair, score, logits in zip(PAIRS, scores, model.logits(PAIRS), strict=True):
        ids = model.pair_ids(*pair)[1]
        expected = float(np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids)), ids].sum())
        assert score.tokens == len(ids)
        np.testing.assert_allclose(score.log_likelihood, expected, rtol=1e-5)
        np.testing.assert_allclose(score.bits_per_byte, -expected / np.log(2) / len(pair[1].encode()), rtol=1e-5)
    with pytest.raises(InputError, match="A batch of 3 inputs does not divide over 8 groups"):
        model.score(PAIRS, num_rows=3)
    texts = [pair[0] or "b" for pair in PAIRS]
    together = model.encode(texts)
    assert together.shape == (3, model.network.config.emb_dim)
    np.testing.assert_allclose(together, np.concatenate([model.encode([text]) for text in texts]), atol=1e-5)
    ids = model.tokenize(texts[0])
    states = np.asarray(model.network.encode(model.params, jnp.asarray(ids)[None]), np.float32)
    np.testing.assert_allclose(together[0], states[0].mean(axis=0), atol=1e-5)


@pytest.mark.slow
def test_generated_text_follows_its_fields(run: Path) -> None:
    model = limba.load(run, vocabulary="byte")
    texts = [pair[0] for pair in PAIRS]
    greedy = model.generate(texts, max_tokens=6)
    assert greedy == model.generate(texts, max_tokens=6, temperature=0, top_k=5)
    drawn = model.samples(texts, max_tokens=6, temperature=2.0, num_samples=2, seed=1)
    assert drawn[2][1].text == model.samples(texts, max_tokens=6, temperature=2.0, num_samples=2, seed=1)[2][1].text
    assert len({text.text for several in drawn for text in several}) > 3
    (beams, *_) = model.samples(texts, max_tokens=6, num_beams=3, num_samples=3)
    assert beams[0].score >= beams[1].score >= beams[2].score
    with pytest.raises(InputError, match="call samples"):
        model.generate(texts, temperature=1.0, num_samples=2)
    with pytest.raises(InputError, match="put it in brackets"):
        model.generate("one text")
    assert model.tokenize("a\ud83d").tolist() == model.tokenize("a?").tolist()


@pytest.mark.slow
def test_a_language_model_continues_scores_and_encodes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", tiny.language_model(vocab_size=384, num_decoder_layers=1))
    model = limba.load(tmp_path / "run", vocabulary="byte")
    (text,) = model.generate(["A text"], max_tokens=4)
    assert text.startswith("A text")
    whole, prompt, rest = model.score([("", "ab cd"), ("", "ab "), ("ab ", "cd")])
    logits = model.logits([("ab ", "cd")])[0]
    ids = model.pair_ids("ab ", "cd")[1]
    expected = float(np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids)), ids].sum())
    np.testing.assert_allclose(rest.log_likelihood, expected, rtol=1e-5)
    end = np.asarray(jax.nn.log_softmax(model.logits([("", "ab ")])[0]))[-1, 1]  # which the whole text has not there
    np.testing.assert_allclose(whole.log_likelihood, prompt.log_likelihood - end + rest.log_likelihood, rtol=1e-4)
    vectors = model.encode(["ab", "a longer text"])
    np.testing.assert_allclose(vectors[0], model.encode(["ab"])[0], atol=1e-5)
    again = limba.load(model.save(tmp_path / "folder"))
    np.testing.assert_allclose(again.logits([("ab ", "cd")])[0], logits, atol=1e-5)
    assert again.vocabulary.encode("ab") == model.vocabulary.encode("ab")


@pytest.mark.slow
def test_a_prefix_lm_reads_prompts_as_it_learned_to(tmp_path: Path) -> None:
    """Logits, likelihood and greedy text of a prompt equal those from the rows that training makes, mask included."""
    network = tiny.language_model(vocab_size=384, num_decoder_layers=2)
    prompt = "Un text"
    write_run(tmp_path / "run", network)
    data = DataConfig(
        "demo_span_corruption", {"targets": 32}, 8, "byte", objective="prefix_lm", task_modules=("tasks.demo",)
    )
    config = RunConfig(network, data, str(tmp_path / "run"), train_steps=1)
    causal, model = (limba.load(tmp_path / "run", vocabulary="byte", config=settings) for settings in (network, config))
    assert model.reads_prefix and not causal.reads_prefix
    apply = jax.jit(model.network.apply)

    def of_training(targets: np.ndarray) -> np.ndarray:
        inputs = model.tokenize(prompt)[1:]
        features = model_features({"inputs": inputs[None], "targets": targets[None]}, 32)
        assert features["decoder_causal_attention"][0].sum() == 1 + len(inputs)
        return np.array(apply(model.params, features))[0, len(inputs) :][: len(targets)]

    targets = model.pair_ids(prompt, " scurt")[1]
    expected = of_training(targets)
    np.testing.assert_allclose(model.logits([(prompt, " scurt")])[0], expected, atol=1e-5)
    assert np.abs(causal.logits([(prompt, " scurt")])[0] - expected).max() > 0.01
    likely = float(np.asarray(jax.nn.log_softmax(expected))[np.arange(len(targets)), targets].sum())
    np.testing.assert_allclose(model.score([(prompt, " scurt")])[0].log_likelihood, likely, rtol=1e-5)

    ((written,),) = model.samples([prompt], max_tokens=6, ban_sentinels=False)
    logits = of_training(written.ids)
    logits[:, 0] = -np.inf  # padding and start, never generated
    assert written.ids.tolist() == logits[:, : model.vocabulary.vocab_size].argmax(axis=1).tolist()
    likely = float(np.asarray(jax.nn.log_softmax(of_training(written.ids)))[np.arange(6), written.ids].sum())
    np.testing.assert_allclose(written.score, likely, rtol=1e-5)
    assert written.text.startswith(prompt)


def test_the_best_step_goes_first_and_a_moved_run_is_read(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(run / "checkpoints" / "7", tmp_path / "run" / "best" / "checkpoints" / "7")
    assert limba.load(tmp_path / "run", vocabulary="byte").step == 7
    assert limba.load(tmp_path / "run", step=9, vocabulary="byte").path == str(tmp_path / "run")
    assert (
        saved_config.from_text((tmp_path / "run" / "config.json").read_text(), "it")
        == find(str(tmp_path / "run")).model
    )


@pytest.mark.parametrize(
    "changes",
    [{"mlp_activations": ("relu",), "logits_via_embedding": True}, {}, {"relative_bias_per_layer": True}],
    ids=["t5_1_0", "t5_1_1", "umt5"],
)
def test_the_network_of_t5x_arrays_is_known_from_their_shapes(changes: dict) -> None:
    config = config_of(**changes)
    shapes = {name: array.shape for name, array in arrays_of(config).items()}
    assert network_of(shapes, "here") == dataclasses.replace(config, dtype="float32", dropout_rate=0.0)
    with pytest.raises(InputError, match="here has no array decoder/relpos_bias/rel_embedding"):
        network_of({name: shape for name, shape in shapes.items() if "relpos" not in name}, "here")


def test_what_is_no_model_is_said(run: Path, tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "is an empty folder"),
        (run / "checkpoints", "is not a model"),
        (tmp_path / "none", "does not exist"),
    ):
        with pytest.raises(InputError, match=rf"{re.escape(str(path))} {words}: looked there for a Limba run"):
            limba.load(path)
    model = limba.load(run)
    with pytest.raises(InputError, match="has no vocabulary"):
        model.generate(["a"])
    with pytest.raises(InputError, match="is not known; give one of huggingface"):
        model.save(tmp_path / "out", format="onnx")
    with pytest.raises(InputError, match="give float32 or bfloat16"):
        model.save(tmp_path / "out", dtype="float16")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not empty"):
        model.save(tmp_path)
    damaged = Path(shutil.copytree(run.parent / "folder", tmp_path / "damaged"))
    (damaged / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config.json cannot be used \(Expecting .*\); copy the folder"):
        limba.load(damaged)
    with pytest.raises(AttributeError, match="it has load"):
        limba.lod  # noqa: B018


@pytest.mark.parametrize("name", ["9.broken", "9.replaced", "9.0123456789abcdef.unfinished", "copy"])
def test_a_step_under_another_name_is_said(name: str, run: Path, tmp_path: Path) -> None:
    """It was taken for a checkpoint of T5X without a step, which was a traceback."""
    step = Path(shutil.copytree(run / "checkpoints" / "9", tmp_path / "run" / "checkpoints" / name))
    sentence = rf"^{re.escape(str(step))} has the files of a Limba checkpoint, but not its name: .*/<step>\.$"
    with pytest.raises(NoModelError, match=sentence):
        limba.load(step)
    with pytest.raises(NoModelError, match=r" is a run that holds no checkpoint yet; "):
        limba.load(tmp_path / "run")


def test_names_are_public_and_importing_them_loads_no_library(tmp_path: Path) -> None:
    code = "import sys; import limba; print(sorted(sys.modules))"
    code += "; assert set(limba.__all__) == set(dir(limba)); limba.RunConfig; assert 'jax' not in sys.modules"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert not {"jax", "numpy", "tensorflow", "seqio", "etils"} & set(json.loads(done.stdout.replace("'", '"')))
    for name in limba.__all__:
        assert getattr(limba, name).__doc__, name
    module = importlib.import_module("limba.run")
    assert limba.train is module.train and limba.run is module, "no module hides the function"


@pytest.mark.slow
def test_the_example_of_the_page_on_python_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    code = next(block for block in blocks if "limba.load(" in block)
    folder = limba.load(run, vocabulary="byte").save(tmp_path / "runs" / "demo")
    assert folder == tmp_path / "runs" / "demo"
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "python.md", "exec"), {})
    assert "(2, 64)" in capsys.readouterr().out and (tmp_path / "exported" / "model.safetensors").is_file()
    # README's lines that use a model; those that train one are in tests/run/test_readme.py.
    (block,) = re.findall(r"```python\n.*?(for fill .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(block, "README.md", "exec"), {"model": limba.load("runs/demo")})
    for line in capsys.readouterr().out.rstrip("\n").split("\n"):
        text, _, probability = line.rpartition(" ")
        assert text and 0 < float(probability) < 1


@pytest.mark.slow
def test_an_imported_model_of_bytes_has_its_vocabulary(run: Path, tmp_path: Path) -> None:
    folder = limba.load(run, vocabulary="byte").save(tmp_path / "folder")
    import_folder(folder, tmp_path / "imported")
    of_folder = limba.load(folder)
    imported = limba.load(tmp_path / "imported")
    assert imported.vocabulary == of_folder.vocabulary
    assert imported.score([("One <extra_id_0>.", "two")]) == of_folder.score([("One <extra_id_0>.", "two")])


@pytest.mark.slow
def test_examples_of_a_model_s_methods(tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `limba.load`, `TrainedModel` and what looks at a run, with a T5 of bytes, as the docstrings have it."""
    monkeypatch.chdir(tmp_path)
    model = config_of()
    write_run(tmp_path / "runs" / "demo", model, steps=(9,))
    data = dataclasses.replace(tiny.demo_data(tmp_path / "corpus.jsonl", vocabulary), vocabulary="byte")
    run = limba.RunConfig(model, data, "runs/demo", train_steps=9)
    (tmp_path / "runs" / "demo" / saved_config.FILE).write_text(saved_config.to_text(run))
    names = {"limba": limba, "model": limba.load("runs/demo")}
    wrong = [test_doctests.failures(ROOT / path, names) for path in test_doctests.OF_A_MODEL]
    assert not any(wrong), "".join(wrong)

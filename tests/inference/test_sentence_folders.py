"""`encode` gives the vectors of sentence-transformers' folders: poolings, what follows them, prompts, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

import limba
from limba.config import InputError

WIDTH = 32
OUT = 12
TEXTS = ["abcd", "a longer text", "e"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of a T5 over bytes, as transformers saves it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 384, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    model = transformers.T5EncoderModel(transformers.T5Config(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.4 if parameter.ndim > 1 else 1.0))
    folder = tmp_path_factory.mktemp("network")
    model.save_pretrained(folder)
    return folder


def folder_of(
    folder: Path,
    network: Path,
    pooling: dict[str, Any],
    dense: dict[str, Any] | None = None,
    *more: str,
    root: str = "",
) -> Path:
    """A folder of sentence-transformers: a Transformer, a Pooling, and a Dense and others if they are asked for."""
    (folder / root).mkdir(parents=True, exist_ok=True)
    for file in network.iterdir():
        (folder / root / file.name).write_bytes(file.read_bytes())
    modules = [(root, "Transformer"), ("1_Pooling", "Pooling")]
    modules += [("2_Dense", "Dense")] if dense is not None else []
    modules += [(f"{3 + number}_{kind}", kind) for number, kind in enumerate(more)]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path, _ in modules[1:]:
        (folder / path).mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": WIDTH, **pooling}))
    if dense is not None:
        settings = {"in_features": WIDTH, "out_features": OUT, "bias": True, **dense}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
        torch.manual_seed(1)
        arrays = {"linear.weight": torch.randn(OUT, settings["in_features"]) / 6, "linear.bias": torch.randn(OUT)}
        save_file(arrays, folder / "2_Dense" / "model.safetensors")
    return folder


def states(network: Path, text: str) -> torch.Tensor:
    model = transformers.T5EncoderModel.from_pretrained(network).eval()
    ids = [*(byte + 3 for byte in text.encode()), 1]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0]


BY_MODE = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0).values,
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
    "weightedmean": lambda x: (x * torch.arange(1, len(x) + 1)[:, None]).sum(0) / sum(range(1, len(x) + 1)),
    "lasttoken": lambda x: x[-1],
}
KEYS = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "lasttoken": "lasttoken"}
KEYS |= {"weightedmean": "weightedmean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}


def same(folder: Path, wanted: list[torch.Tensor]) -> None:
    vectors = limba.load(folder, vocabulary="byte").encode(TEXTS)
    np.testing.assert_allclose(vectors, torch.stack(wanted).numpy(), atol=2e-5)


@pytest.mark.slow
def test_each_pooling_by_its_old_key_and_several_by_the_new_one(network: Path, tmp_path: Path) -> None:
    rows = [states(network, text) for text in TEXTS]
    model = limba.load(folder_of(tmp_path / "first", network, {}), vocabulary="byte")
    for mode, key in KEYS.items():
        settings = {"word_embedding_dimension": WIDTH, f"pooling_mode_{key}": True}
        (tmp_path / "first" / "1_Pooling" / "config.json").write_text(json.dumps(settings))
        wanted = torch.stack([BY_MODE[mode](row) for row in rows]).numpy()
        np.testing.assert_allclose(model.encode(TEXTS), wanted, atol=2e-5, err_msg=mode)
    several = folder_of(tmp_path / "several", network, {"pooling_mode": ["lasttoken", "cls"]})
    same(several, [torch.cat([row[-1], row[0]]) for row in rows])
    chosen = limba.load(several, vocabulary="byte").encode(TEXTS, pooling="mean")  # a caller's choice counts
    np.testing.assert_allclose(chosen, torch.stack([row.mean(0) for row in rows]).numpy(), atol=2e-5)


@pytest.mark.parametrize("activation", ["Tanh", "Identity", "GELU", "ReLU", "Sigmoid", "SiLU"])
def test_dense_and_normalize_follow(activation: str, network: Path, tmp_path: Path) -> None:
    package = "linear" if activation == "Identity" else "activation"
    name = f"torch.nn.modules.{package}.{activation}"
    folder = folder_of(tmp_path, network, {}, {"activation_function": name}, "Normalize")
    torch.manual_seed(1)
    layer = torch.nn.Linear(WIDTH, OUT)
    with torch.no_grad():
        torch.manual_seed(1)
        layer.weight.copy_(torch.randn(OUT, WIDTH) / 6)
        layer.bias.copy_(torch.randn(OUT))
        means = torch.stack([states(network, text).mean(0) for text in TEXTS])
        vectors = torch.nn.functional.normalize(getattr(torch.nn, activation)()(layer(means)))
    same(folder, list(vectors))


def test_an_old_folder_with_a_prompt_small_letters_and_a_length(network: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, network, {"pooling_mode_mean_tokens": True}, root="0_Transformer")
    settings = {"prompts": {"query": "QU: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    limits = {"max_seq_length": 7, "do_lower_case": True}
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(limits))
    same(folder, [states(network, ("qu: " + text)[:6]).mean(0) for text in TEXTS])


@pytest.mark.parametrize("length", [700, 550])
def test_a_folders_own_length_counts_whatever_its_tokenizers(
    length: int, network: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """max_seq_length, larger than the 512 of a folder that names no length."""
    folder = folder_of(tmp_path, network, {"pooling_mode_mean_tokens": True})
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    text = "abcde " * 100
    vectors = limba.load(folder, vocabulary="byte").encode([text])
    wanted = states(network, text[: length - 1]).mean(0)[None]
    np.testing.assert_allclose(vectors, wanted.numpy(), atol=2e-5)
    was_cut = "1 of 1 texts are longer than the 550 tokens that are read of each" in caplog.text
    assert was_cut == (length == 550)


def test_sentence_transformers_itself_gives_the_same(network: Path, tmp_path: Path) -> None:
    """Where that library is installed; the project does not need it."""
    library = pytest.importorskip("sentence_transformers")
    name = "torch.nn.modules.activation.Tanh"
    folder = folder_of(tmp_path, network, {"pooling_mode_lasttoken": True}, {"activation_function": name}, "Normalize")
    transformers.ByT5Tokenizer(extra_ids=125).save_pretrained(folder)
    wanted = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(limba.load(folder).encode(TEXTS), wanted, atol=2e-5)


PACKAGE = "sentence_transformers.models"
REFUSED = {
    "an unknown module": (lambda folder: module(folder, 2, type=f"{PACKAGE}.LSTM"), "names a module LSTM"),
    "somebody's code": (lambda folder: module(folder, 2, type="theirs.Dense"), "names the class 'theirs.Dense'"),
    "a folder outside": (lambda folder: module(folder, 1, path="../1_Pooling"), "which is not inside"),
    "no pooling": (lambda folder: module(folder, 1, type=f"{PACKAGE}.Dense"), "a Transformer, a Pooling"),
    "an unknown mode": (lambda folder: about(folder, "1_Pooling", pooling_mode="best"), "has the pooling 'best'"),
    "an unknown activation": (
        lambda folder: about(folder, "2_Dense", activation_function="torch.nn.modules.activation.Mish"), "Mish",
    ),
    "tokens": (lambda folder: about(folder, "2_Dense", module_input_name="token_embeddings"), "module_input_name"),
    "another size": (lambda folder: about(folder, "2_Dense", out_features=5), "no linear.weight of its config"),
    "no list": (lambda folder: (folder / "modules.json").write_text("{}"), "is not a list of modules"),
}  # fmt: skip


def module(folder: Path, number: int, **fields: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[number] |= fields
    (folder / "modules.json").write_text(json.dumps(modules))


def about(folder: Path, name: str, **fields: object) -> None:
    settings = json.loads((folder / name / "config.json").read_text())
    (folder / name / "config.json").write_text(json.dumps(settings | fields))


def test_what_is_not_known_is_one_sentence(network: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, network, {}, {})
    files = {file: file.read_bytes() for file in folder.rglob("*.json")}
    model = limba.load(folder, vocabulary="byte")
    for name, (change, sentence) in REFUSED.items():
        change(folder)
        with pytest.raises(InputError, match=sentence) as caught:
            model.encode(TEXTS)
        assert "\n" not in str(caught.value), name
        for file, content in files.items():
            file.write_bytes(content)

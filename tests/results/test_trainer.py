"""Tasks fine-tuned by transformers' own classes: several families and ours in one table, and the search for rates."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from jaxlib import xla_client
from sklearn import metrics

import limba
from limba.cli import main
from limba.config import InputError
from limba.tools.results import protocol
from limba.tools.results.foreign_models import open_model
from limba.tools.results.protocol import PROTOCOL
from limba.tools.results.suites import read_suite, read_task
from tests import tiny
from tests.export.runs import write_run
from tests.results import folders
from tests.waiting import wait_until

SMALL = {"learning_rates": (5e-3,), "epochs": (3,), "batch_size": 8}
NARROW = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several threads wait for each other longer than such small networks compute."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of programs
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """What a model learns depends on its first weights, and they on what other tests have drawn."""
    torch.manual_seed(0)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folders.write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(protocol, "PROTOCOL", dataclasses.replace(PROTOCOL, **SMALL))
    return tmp_path


def cells_of(folder: Path) -> dict[tuple[str, str], dict]:
    """The cells of a table's main figures, by task and model."""
    cells = json.loads((folder / "results.json").read_text())["cells"]
    return {
        (cell["task"], cell["model"]): cell for cell in cells if cell["figure"] in ("accuracy", "span F1", "Pearson")
    }


@pytest.mark.night
def test_a_berts_folder_learns_tags(data, monkeypatch, capsys) -> None:
    two_rates = {**SMALL, "learning_rates": (1e-6, 5e-3)}  # the first learns nothing
    monkeypatch.setattr(protocol, "PROTOCOL", dataclasses.replace(PROTOCOL, **two_rates))
    folders.bert(data / "bert")
    command = ["results", "bert", "--suite=./suite.gin", "--tasks=tags", "--output=out", "--seeds=2"]
    assert main.main(command) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "8 outcomes computed" in printed, "a search of two rates and two seeds, also of random weights"
    assert "tags, bert: rate 0.005, 3 epochs (accuracy on the development part" in printed
    cells = cells_of(data / "out")
    assert cells["tags", "bert"]["mean"] > cells["tags", "majority"]["mean"] + 10
    rows = {"bert", "bert, random weights", "majority", "each word's usual tag"}
    assert {model for _, model in cells} == rows and cells["tags", "bert"]["seeds"] == 2
    low, high = cells["tags", "bert"]["over_examples"]
    assert low <= cells["tags", "bert"]["mean"] <= high and len(cells["tags", "bert"]["protocol"]) == 8
    # Each figure follows from its kept predictions, by scikit-learn.
    task = read_suite("./suite.gin").tasks[2]
    parts = read_task(task, ".").parts
    assert parts is not None
    means = []
    for path in (data / "out" / "outcomes").glob("*.json"):
        kept = json.loads(path.read_text())
        outcome = kept["outcome"]
        assert len(outcome["curve"]) == 3
        if kept["facts"]["rate"] == 5e-3:
            assert outcome["curve"][0]["loss"] > outcome["curve"][2]["loss"]
        if kept["facts"]["part"] == "test":
            targets = [tag for example in parts.test for tag in example.tags]
            predictions = [tag for tags in outcome["predictions"] for tag in tags]
            accuracy = 100 * metrics.accuracy_score(targets, predictions)
            assert outcome["figures"]["accuracy"] == pytest.approx(accuracy, abs=1e-9)
            means += [accuracy] if kept["facts"]["weights"] == "trained" else []
    assert sum(means) / 2 == pytest.approx(cells["tags", "bert"]["mean"], abs=1e-9)
    assert "40 test examples of 20 documents" in printed
    table = (data / "out" / "results.json").read_text()
    assert main.main(command) == 0 and "0 outcomes computed" in capsys.readouterr().out
    assert (data / "out" / "results.json").read_text() == table and not (data / "out" / "training").exists()
    # A quick table has one rate, which is not searched, and says so in each row.
    quick = ["results", "bert", "--suite=./suite.gin", "--tasks=tags", "--output=quick", "--seeds=1", "--quick"]
    assert main.main(quick) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "2 outcomes computed" in printed, "one seed, also of random weights"
    (cell,) = [cell for (_, model), cell in cells_of(data / "quick").items() if model == "bert"]
    notes = json.loads((data / "quick" / "results.json").read_text())["notes"]
    about = [notes[number - 1] for number in cell["notes"]]
    assert cell["seeds"] == 1 and about[0].startswith("tags, bert: rate 0.001, 5 epochs"), "its row names its sentences"
    assert about == [note for note in notes if note.startswith("tags, bert: ")]
    assert "tags, bert: rate 0.001, 5 epochs (not searched; accuracy on the development part" in printed
    assert all(cell["protocol"].startswith("quick ") for cell in cells_of(data / "quick").values())


@pytest.mark.night
def test_families_and_a_run_of_ours_stand_in_one_table(data, vocabulary, monkeypatch, capsys) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL", dataclasses.replace(PROTOCOL, **{**SMALL, "epochs": (4,)}))
    models = [
        made(data / made.__name__).name for made in (folders.bert, folders.xlm_roberta, folders.mt5, folders.llama)
    ]
    network = tiny.model(vocab_size=1_024, num_encoder_layers=1, num_decoder_layers=1, **NARROW)
    write_run(data / "ours", network)
    (data / "ours" / "spiece.model").write_bytes(vocabulary.read_bytes())
    chosen = ("kind", "names")
    command = ["results", *models, "ours", "--suite=./suite.gin", f"--tasks={','.join(chosen)}", "--seeds=1"]
    assert main.main(command) == 0, capsys.readouterr().err
    cells = cells_of(data / "results" / "suite")
    for task in chosen:
        for model in (*models, "ours"):
            cell = cells[task, model]
            majority = cells[task, "majority"]
            assert cell["protocol"] == majority["protocol"], (task, model)
            assert cell["mean"] > majority["mean"], (task, model, cell, majority)
        assert max(cells[task, name]["mean"] for name in models) > 85, task
    assert len(list((data / "results" / "suite" / "exported").iterdir())) == 1, "a run is exported once"


@pytest.mark.night
def test_what_a_trainer_gives_is_what_the_class_gives(data, capsys) -> None:
    """The trained weights, computed again without our code: the same predictions of the test part."""
    folders.bert(data / "bert")
    opened = open_model("bert", data / "exported")
    from limba.tools.results.trainer import FineTuning, Setting

    task = read_suite("./suite.gin").tasks[0]
    parts = read_task(task, ".").parts
    assert parts is not None
    rules = dataclasses.replace(PROTOCOL, **SMALL)
    kept = []
    train = transformers.Trainer.train

    def keep(trainer, *arguments, **names):
        result = train(trainer, *arguments, **names)
        kept.append(trainer.model)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.Trainer, "train", keep)
        outcome = FineTuning(opened, task, parts, rules, data / "training").outcome(Setting(5e-3, 3), 1, True, False)
    (network,) = kept
    network.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("bert")
    with torch.no_grad():
        for example, prediction in zip(parts.test, outcome.predictions, strict=True):
            logits = network(**tokenizer(example.texts[0], return_tensors="pt")).logits[0]
            assert network.config.id2label[int(logits.argmax())] == prediction


def test_first_tokens_of_words_are_found(tmp_path) -> None:
    folders.bert(tmp_path / "bert")
    opened = open_model(str(tmp_path / "bert"), tmp_path)
    words = ["Ana", "Pop", "0.55", "", "Cluj"]
    ids, places, is_cut = opened.words(words, 32)
    assert not is_cut, "the empty word has no token, and nothing is cut"
    encoded = opened.tokenizer(words, is_split_into_words=True)
    first = [encoded.word_ids().index(number) if number in encoded.word_ids() else None for number in range(5)]
    assert ids["input_ids"] == encoded["input_ids"] and places == first and places[3] is None
    _, places, is_cut = opened.words(words, 5)
    assert places[2:] == [3, None, None] and is_cut, "the rest is cut off"
    tokenizer = transformers.ByT5Tokenizer()
    opened.tokenizer = tokenizer
    ids, places, is_cut = opened.words(["aă", "b"], 32)
    assert ids["input_ids"] == tokenizer("aă b")["input_ids"] and places == [0, 4] and not is_cut
    assert opened.words(["aă", "b"], 4)[2]


def test_a_batch_is_the_protocols_however_many_gpus_there_are(data, monkeypatch) -> None:
    folders.bert(data / "bert")
    task = read_suite("./suite.gin").tasks[0]
    parts = read_task(task, ".").parts
    assert parts is not None
    from limba.tools.results.trainer import FineTuning, Setting

    runs = FineTuning(open_model("bert", data), task, parts, PROTOCOL, data / "training")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    arguments = runs._arguments(Setting(1e-3, 3), 0)
    assert arguments.train_batch_size == 16 and arguments.eval_batch_size == 32


def test_a_model_that_pads_with_its_end_finds_the_last_token_before_it(data) -> None:
    folders.llama(data / "llama")
    settings = json.loads((data / "llama" / "config.json").read_text())
    (data / "llama" / "config.json").write_text(json.dumps(settings | {"pad_token_id": 0}))
    opened = open_model("llama", data)
    network = opened.network(False, ("no", "yes"), 0, False).eval()
    alone = opened.tokenizer(["Ana"], return_tensors="pt")
    padded = opened.tokenizer(["Ana", "Ana Pop Cluj Ion"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert network(**padded).logits[0] == pytest.approx(network(**alone).logits[0], abs=1e-5)


def test_jax_leaves_a_gpus_memory_to_torch(data, monkeypatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE")
    assert "preallocate" not in xla_client.generate_pjrt_gpu_plugin_options()
    assert main.main(["results", "absent", "--suite=./suite.gin"]) == 2
    assert xla_client.generate_pjrt_gpu_plugin_options()["preallocate"] is False


def test_a_gpu_that_is_too_small_is_one_sentence(data, monkeypatch, capsys) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    folders.bert(data / "bert")
    monkeypatch.setattr(transformers.Trainer, "train", out_of_memory)
    assert main.main(["results", "bert", "--suite=./suite.gin", "--tasks=tags"]) == InputError.exit_status
    said = capsys.readouterr().err
    assert "bert does not fit into the GPU's memory on the task tags, with 8 texts" in said and "Traceback" not in said


def test_an_id_without_a_row_is_one_sentence(data, capsys) -> None:
    folders.bert(data / "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "bert")
    tokenizer.add_tokens([f"new{number}" for number in range(200)])
    tokenizer.add_special_tokens({"pad_token": "[PADDING]"})
    tokenizer.save_pretrained(data / "bert")
    assert main.main(["results", "bert", "--suite=./suite.gin", "--tasks=tags", "--seeds=1"]) == 2
    error = capsys.readouterr().err
    assert "The tokenizer of bert gives the id " in error and "and the model has 200 rows; resize its" in error


def test_positions_that_begin_after_paddings_are_not_counted(tmp_path) -> None:
    assert open_model(str(folders.xlm_roberta(tmp_path / "x")), tmp_path).check(is_tagged=True) == 17
    assert open_model(str(folders.bert(tmp_path / "b")), tmp_path).check(is_tagged=False) == 32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"model_type": "of_my_own", "auto_map": {"AutoModel": "m.M"}},
            "so it needs code of its own, which is never run",
        ),
        ({"model_type": "of_my_own"}, "has the model_type 'of_my_own', which transformers"),
        ({"model_type": "vit"}, "has no class of vit for the classification of tokens; give another model"),
    ],
)
def test_what_transformers_has_no_class_for_is_one_sentence(change, says, data, capsys) -> None:
    folders.bert(data / "bert")
    settings = json.loads((data / "bert" / "config.json").read_text())
    (data / "bert" / "config.json").write_text(json.dumps(settings | change))
    (data / "bert" / "m.py").write_text("raise SystemExit('foreign code runs')")
    assert main.main(["results", "bert", "--suite=./suite.gin", "--tasks=tags", "--output=out"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1, error


def test_weights_that_a_class_needs_and_does_not_find_are_one_sentence(data, capsys) -> None:
    folders.mt5(data / "whole")
    whole = transformers.MT5ForConditionalGeneration.from_pretrained(data / "whole")
    encoder = transformers.MT5EncoderModel(whole.config)
    folders.saved(encoder, data / "encoder", {"pad_token": "[PAD]", "eos_token": "[SEP]"})
    opened = open_model("encoder", data)
    assert opened.network(True, ("O", "B-X"), 0, False) is not None, "tags need the encoder alone"
    with pytest.raises(InputError, match="weights that it does not have, such as transformer.decoder"):
        opened.network(False, ("no", "yes"), 0, False)


def edited(name: str, **change: object):
    """A function that changes fields of a JSON file in a folder."""

    def edit(folder: Path) -> None:
        about = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(about | change))

    return edit


def without(*names: str):
    """A function that removes files from a folder."""
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            without("tokenizer.json", "tokenizer_config.json"),
            "The tokenizer of damaged knows no word of the training part of tags: all that it gives is [CLS] [SEP]",
        ),
        (without("tokenizer.json"), "damaged cannot be read (Couldn't instantiate the backend tokenizer"),
        (without("model.safetensors"), "damaged has a config.json and no weights"),
        (cut, "damaged cannot be read ("),
        (edited("config.json", hidden_size=64), "weights that it does not have, such as bert.embeddings"),
        (edited("config.json", hidden_size=-4), "damaged cannot be read (Trying to create tensor with negative"),
        (edited("tokenizer_config.json", model_max_length="many"), "damaged cannot be read (invalid literal for int"),
    ],
)
def test_a_damaged_model_is_one_sentence_before_another_one_is_trained(damage, says, data, monkeypatch, capsys) -> None:
    monkeypatch.setattr(transformers.Trainer, "train", lambda *_: pytest.fail("a model is trained"))
    folders.bert(data / "bert")
    damage(folders.bert(data / "damaged"))
    assert main.main(["results", "bert", "damaged", "--suite=./suite.gin", "--tasks=tags"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1, error


@pytest.mark.night
def test_a_similarity_is_learned(data, capsys) -> None:
    folders.bert(data / "bert")
    command = ["results", "bert", "--suite=./suite.gin", "--tasks=sts", "--output=out", "--seeds=1"]
    assert main.main(command) == 0, capsys.readouterr().err
    assert cells_of(data / "out")["sts", "bert"]["mean"] > 50


@pytest.mark.night
def test_a_training_that_was_killed_gives_the_table_of_an_unbroken_one(data, capsys) -> None:
    folders.bert(data / "bert")
    command = ["results", "bert", "--suite=./suite.gin", "--tasks=tags", "--seeds=4", "--quick"]
    assert main.main([*command, "--output=whole"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "compare with other quick figures only" in said
    assert "8 outcomes computed" in said, "four seeds, also of random weights, and no search"
    kept = lambda: {path: path.stat().st_mtime_ns for path in (data / "out" / "outcomes").glob("*.json")}
    environment = {**os.environ, "PYTHONPATH": str(Path(limba.__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-m", "limba", *command, "--output=out"], env=environment) as killed:
        wait_until(lambda: kept() or killed.poll() is not None)
        killed.kill()
    before = kept()
    assert 0 < len(before) < 8 and not (data / "out" / "results.json").exists()
    assert main.main([*command, "--output=out"]) == 0, capsys.readouterr().err
    assert f"{8 - len(before)} outcomes computed" in capsys.readouterr().out
    assert before.items() <= kept().items()
    tables = [json.loads((data / name / "results.json").read_text()) for name in ("whole", "out")]
    assert tables[0] == tables[1]


def test_a_missing_package_is_said_with_the_command_that_installs_it(data, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert main.main(["results", "bert", "--suite=./suite.gin"]) == 2
    says = "A task that is fine-tuned needs accelerate, which is not installed; run bash launch/setup.sh results.\n"
    assert capsys.readouterr().err.endswith(says)

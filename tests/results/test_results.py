"""`limba results`: a table that is computed once, tasks as files have them, and errors before time is spent."""

import dataclasses
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import huggingface_hub
import numpy as np
import pytest

import limba
from limba.cli import main
from limba.config import InputError
from limba.tools.results import protocol, scores
from limba.tools.results.finetuning import FineTuning
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.learned import (
    Classification,
    Example,
    NamedEntities,
    PartOfSpeech,
    Similarity,
    parsed,
    written,
)
from limba.tools.results.outcome import jackknife
from limba.tools.results.protocol import PROTOCOL, QUICK
from limba.tools.results.results import TABLES
from limba.tools.results.scoring import open_scorer
from limba.tools.results.suites import read_suite, read_task
from tests import tiny
from tests.export.runs import folder_of, write_run
from tests.waiting import wait_until

NARROW = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16, "num_decoder_layers": 1}
# Two sentences of RONEC (MIT licence).
RONEC = """# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC RONEC:CLASS
# sent_id = 3045
1\tPreședintele\tpreședinte\tNOUN\t_\t_\t5\tnsubj\t_\t_\tB-PERSON
2\tIon\tIon\tPROPN\t_\t_\t1\tnmod\t_\t_\tI-PERSON
3\tIliescu\tIliescu\tPROPN\t_\t_\t2\tflat\t_\t_\tI-PERSON
4\ta\tavea\tAUX\t_\t_\t5\taux\t_\t_\tO
5\tparticipat\tparticipa\tVERB\t_\t_\t0\troot\t_\t_\tO

# sent_id = 1
1\tVardar\tVardar\tPROPN\t_\t_\t0\troot\t_\t_\tB-ORGANIZATION
2\tSkopje\tSkopje\tPROPN\t_\t_\t1\tflat\t_\t_\tI-ORGANIZATION
"""


@pytest.mark.slow
def test_a_second_call_computes_nothing_and_a_changed_file_is_seen(place, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, place / "model")
    command = ["results", "model", "--suite=./suite.gin", "--output=out", "--card"]
    assert main.main(command) == 2 and "README.md does not exist, so --card has no card" in capsys.readouterr().err
    (place / "model" / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n")
    assert main.main(command) == 0, capsys.readouterr().err
    assert "4 outcomes computed" in capsys.readouterr().out
    assert set(TABLES) <= {path.name for path in (place / "out").iterdir()}
    table = (place / "out" / "results.json").read_text()
    cells = {(each["task"], each["column"]): each for each in json.loads(table)["cells"]}
    assert cells["agreement", "chance"]["mean"] == 50 and ("text", "chance") not in cells
    assert cells["text", "model, random weights"]["mean"] > 1 and cells["agreement", "model"]["interval"]
    verb, held = cells["agreement", "model"]["parts"]["verb"], cells["text", "model"]["parts"]["held.txt"]
    assert verb == {name: cells["agreement", "model"][name] for name in ("mean", "interval")}
    assert held == {"mean": cells["text", "model"]["mean"], "interval": None}
    markdown, tex = ((place / "out" / f"results.{each}").read_text() for each in ("md", "tex"))
    assert markdown.startswith("| task | figure | model | model, random weights | chance |\n| --- |")
    assert tex.startswith("\\begin{tabular}{llrrr}\n\\toprule") and " \\\\\n\\bottomrule" in tex

    picture = ElementTree.fromstring((place / "out" / "results.svg").read_text())
    bars = [each for each in picture.iter() if each.tag.endswith("rect")]
    assert len(bars) == len(cells) and {each.get("class") for each in bars} == {"b", "o"}

    written = (place / "model" / "README.md").read_text()
    data = huggingface_hub.ModelCard(written).data
    assert isinstance(data, huggingface_hub.ModelCardData) and data.eval_results
    results = {each.dataset_type: each for each in data.eval_results}
    assert set(results) == {"suite/agreement", "suite/text"} and data.license == "mit"
    assert results["suite/agreement"].metric_value == cells["agreement", "model"]["mean"]
    assert "# A model" in written and markdown.partition("\n")[0] in written

    assert main.main(command) == 0
    assert "0 outcomes computed" in capsys.readouterr().out
    assert (place / "out" / "results.json").read_text() == table
    assert (place / "model" / "README.md").read_text() == written, "the section is replaced"
    (place / "pairs.tsv").write_text("good\tbad\nOne is.\tOne are.\n")
    assert main.main(command) == 0
    assert "2 outcomes computed" in capsys.readouterr().out
    kept = next((place / "out" / "outcomes").glob("text-*"))
    kept.write_text("{")
    assert main.main(command) == 2 and f"{kept.name} cannot be read (" in capsys.readouterr().err


def test_checkpoints_of_a_run_are_columns_by_their_paths(place, vocabulary, capsys) -> None:
    write_run(place / "run", tiny.model(vocab_size=1_024), steps=(5, 10))
    shutil.copy(vocabulary, place / "run" / "spiece.model")
    steps = ["run/checkpoints/5", "run/checkpoints/10"]
    command = ["results", *steps, "--suite=./suite.gin", "--tasks=agreement", "--output=out"]
    assert main.main(command) == 0, capsys.readouterr().err
    found = json.loads((place / "out" / "results.json").read_text())["cells"]
    assert {"run, step 5", "run, step 10"} <= {each["column"] for each in found}
    assert (place / "run" / "results" / "suite.svg").read_text() == (place / "out" / "results.svg").read_text()


@pytest.mark.night
def test_a_task_is_learned(place, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024, num_decoder_layers=2), vocabulary, place / "model")
    chosen = random.Random(0)
    for name, count in (("train", 400), ("test", 60)):
        rows = [(label := chosen.choice(["yes", "no"]), f"{chosen.random():.6f} {label}") for _ in range(count)]
        lines = [json.dumps({"text": text, "label": label}) for label, text in rows]
        with gzip.open(place / f"{name}.jsonl.gz", "wt") as file:
            file.write("\n".join(lines))
    (place / "suite.gin").write_text(
        "answer/Classification.train = 'train.jsonl.gz'\nanswer/Classification.test = 'test.jsonl.gz'\n"
    )
    command = ["results", "model", "--suite=./suite.gin", "--output=out", "--seeds=2"]
    assert main.main(command) == 0, capsys.readouterr().err
    assert "6 outcomes computed" in capsys.readouterr().out
    found = json.loads((place / "out" / "results.json").read_text())
    cells = {(each["figure"], each["column"]): each for each in found["cells"]}
    assert cells["accuracy", "model"]["mean"] > cells["accuracy", "majority"]["mean"] + 10, cells
    assert cells["accuracy", "model"]["seeds"] == 2 and cells["accuracy", "model"]["deviation"] is not None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a/Pairs.file = 'b'", "suite.gin line 1: Pairs is no kind of task"),
        ("a/MinimalPairs.fil = 'b'", "line 1: MinimalPairs has no fil; did you mean file?"),
        ("MinimalPairs.file = 'b'", "line 1 names no task; write NAME/MinimalPairs.file = …"),
        ("a/MinimalPairs.most = 5", "the task a has no file; add a/MinimalPairs.file = …"),
        ("a/MinimalPairs.file = 5", "line 1: MinimalPairs.file is 5; give a string."),
        ("a/MinimalPairs.file = 'none.tsv'", "none.tsv does not exist; name the folder of the suite's files as --data"),
        ("suite.languages = 'ro'", "line 1 sets suite.languages; a suite has suite.language"),
        ("suite.language = 'ro'", "suite.gin lists no tasks"),
        ("a/MinimalPairs.file = 'pairs.tsv'", "model does not exist: looked there for a Limba run"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_opened(line, says, place, capsys) -> None:
    (place / "suite.gin").write_text(line + "\n")
    assert main.main(["results", "model", "--suite=./suite.gin"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1, error


def test_some_tasks_of_a_suite_are_chosen(place, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, place / "model")
    command = ["results", "model", "--suite=./suite.gin", "--output=out"]
    assert main.main([*command, "--tasks=agreement,tekst"]) == 2
    said = "--tasks names tekst, and the suite suite has the tasks agreement, text; give some of them with commas."
    assert said in capsys.readouterr().err
    (place / "held.txt").unlink()
    assert main.main([*command, "--tasks=agreement"]) == 0, capsys.readouterr().err
    found = json.loads((place / "out" / "results.json").read_text())
    assert {each["task"] for each in found["cells"]} == {"agreement"}


SHIPPED = sorted(path.stem for path in (Path(limba.__file__).parents[1] / "gin" / "suites").glob("*.gin"))


@pytest.mark.parametrize("name", SHIPPED)
def test_suites_that_are_shipped_can_be_read(name) -> None:
    suite = read_suite(name)
    assert suite.name == name and suite.language == (None if name in ("any", "wikiann") else name) and suite.tasks


@pytest.mark.parametrize("name", ["ro", "nb", "ja"])
def test_the_comments_of_a_suite_have_a_command_that_downloads_each_file(name) -> None:
    text = (Path(limba.__file__).parents[1] / "gin" / "suites" / f"{name}.gin").read_text()
    downloaded = re.findall(r"^#   curl -fL https://\S+ -o (\S+)", text, re.MULTILINE)
    downloaded += re.findall(r"^#   hf download \S+ (\S+) --repo-type=dataset --local-dir \.", text, re.MULTILINE)
    assert sorted(downloaded) == sorted({file for task in read_suite(name).tasks for file in task.files})


def test_the_suite_of_any_language_reads_two_files(place) -> None:
    (place / "held_out.txt").write_text("The one is here.\n")
    found = [read_task(task, str(place)) for task in read_suite("any").tasks]
    assert [each.measure is not None for each in found] == [True, True]
    with pytest.raises(InputError, match="wikiann_.* does not exist"):
        read_task(read_suite("wikiann").tasks[0], str(place))


def test_names_are_read_and_written_again() -> None:
    chosen = random.Random(1)
    for _ in range(300):
        tokens = [chosen.choice(["a", "b", "|", "#2", "#", "\\x", "none", "X"]) for _ in range(12)]
        cuts = sorted(chosen.sample(range(13), 4))
        spans = [("X", cuts[0], cuts[1]), ("NAT_REL", cuts[2], cuts[3])]
        assert parsed(written(tokens, spans), tokens, {"X", "NAT_REL"}) == (spans, False)
    tokens = ["Ana", "din", "Cluj"]
    assert written(tokens, []) == "none" and parsed("none", tokens, {"X"}) == ([], False)
    assert parsed("X Ana | Y Cluj | X Ana #2 | | X", tokens, {"X"}) == ([("X", 0, 1)], True)


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["O", "I-A", "I-A", "B-A"], [("A", 1, 3), ("A", 3, 4)]),
        (["B-A", "I-B", "I-B"], [("A", 0, 1), ("B", 1, 3)]),
        (["I-A", "O", "I-A"], [("A", 0, 1), ("A", 2, 3)]),
    ],
)
def test_spans_follow_seqeval(tags, spans) -> None:
    assert scores.spans_of(tags) == spans


def test_correlations_equal_scipys() -> None:
    from scipy import stats

    chosen = random.Random(0)
    first = [chosen.randint(0, 5) for _ in range(50)]
    second = [value + chosen.random() * 3 for value in first]
    assert scores.pearson(first, second) == pytest.approx(100 * np.corrcoef(first, second)[0, 1])
    ranks = [stats.rankdata(each) for each in (first, second)]
    assert scores.spearman(first, second) == pytest.approx(100 * np.corrcoef(*ranks)[0, 1])
    assert scores.pearson([1, 2], [3, 3]) == 0


def test_named_entities_of_two_layouts_share_no_sentence(tmp_path) -> None:
    (tmp_path / "train.conllup").write_text(RONEC.replace("\tO\n", "\tSpaceAfter=No|name=O\n"))  # NorNE's way too
    test = [
        {"tokens": ["Vardar-", "Skopje"], "ner_tags": ["B-ORG", "I-ORG"]},
        {"tokens": ["Iliescu"], "ner_tags": ["B-PERSON"]},
    ]
    (tmp_path / "test.json").write_text(json.dumps(test))
    task = NamedEntities(
        "ner", "train.conllup", "test.json", dev="test.json", rename={"ORGANIZATION": "ORG"}, tags="RONEC:CLASS"
    )
    parts = task.read(str(tmp_path))
    assert [each.targets for each in parts.train] == ["PERSON Președintele Ion Iliescu", "ORG Vardar Skopje"]
    assert task.judge(parts.test, ["ORG Vardar- Skopje", "GPE Iliescu"], parts).notes == {"malformed": 1}
    (tmp_path / "test.json").write_text(json.dumps([{"tokens": ["Vardar", "Skopje"], "ner_tags": ["B-ORG", "I-ORG"]}]))
    with pytest.raises(InputError, match=re.escape("test.json entry 1 has the label ORG, which no example of train")):
        task.read(str(tmp_path))


def test_figures_of_each_kind(tmp_path) -> None:
    rows = "5.0\tA b c\tA b\n0.4\tD\tE\n2.2\tF g\tF\n"
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text(rows if name == "test" else rows.replace("\t", "\t- "))
        (tmp_path / f"{name}.conllu").write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n")
    sts = Similarity("sts", "train.tsv", "test.tsv", dev="test.tsv", score=0, first=1, second=2)
    parts = sts.read(str(tmp_path))
    assert [each.targets for each in parts.test] == ["5.0", "0.4", "2.2"] and parts.left_out == 0
    quick = read_task(sts, str(tmp_path), dataclasses.replace(QUICK, most_test=2))
    assert quick.parts and quick.parts.test == [parts.test[0], parts.test[1]]
    letters = [(0.0, "彼が行く | 雨です"), (2.0, "彼が行く | 彼は来た"), (4.0, "彼が行く | 彼が行く")]
    without_spaces = parts._replace(test=[Example(text, "", "", value=value) for value, text in letters])
    assert sts.floors(without_spaces)["word overlap"]["Spearman"] == pytest.approx(100)
    judged = sts.judge(parts.test, ["4.8", "x", "2,0"], parts)
    assert judged.notes == {"malformed": 1} and judged.figures["Pearson"] > 60
    with pytest.raises(InputError, match="Each example of test.tsv is in another part of sts too"):
        Similarity("sts", "test.tsv", "test.tsv", dev="test.tsv", score=0, first=1, second=2).read(str(tmp_path))
    with pytest.raises(InputError, match=re.escape("test.tsv line 1: the column 1 is no number")):
        Similarity("sts", "test.tsv", "test.tsv", score=1, first=1, second=2).read(str(tmp_path))
    with pytest.raises(InputError, match=re.escape("test.tsv line 1 has no column 7; it has 0, 1, 2")):
        Classification("c", "test.tsv", "test.tsv", columns=(7,), label=1).read(str(tmp_path))
    with pytest.raises(InputError, match="conllu line 1 has 10 columns and no column 30"):
        PartOfSpeech("pos", "test.conllu", "test.conllu", tags=30).read(str(tmp_path))


def test_quick_rows_are_as_long_as_most_examples(tmp_path, vocabulary) -> None:
    rows = [f"{'one ' * (1 + 60 * (n % 20 == 19))}{n}\tyes" for n in range(40)]
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(f"{name} {row}" for row in rows) + "\n")
    task = Classification("c", "train.tsv", "test.tsv", dev="dev.tsv", columns=(0,), label=1)
    trained = limba.load(folder_of(tiny.model(vocab_size=1_024, **NARROW), vocabulary, tmp_path / "model"))
    longest = []
    for chosen in (PROTOCOL, QUICK):
        pairs = FineTuning(trained, task, task.read(str(tmp_path)), chosen).pairs
        assert all(read[-1] == 1 for read, _ in pairs["test"]), "each ends, cut or not"
        longest.append(max(len(read) for read, _ in pairs["test"]))
    assert longest[0] > longest[1] == 16


def test_an_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(50, 10, 40)
    low, high = jackknife(lambda places: {"x": float(values[list(places)].mean())}, 40, 50, 0.95)["x"]
    assert (low + high) / 2 == pytest.approx(values.mean())
    assert (high - low) / 2 == pytest.approx(1.959964 * values.std(ddof=1) / 40**0.5)


def test_bits_per_byte_are_those_of_each_file_and_script(place, vocabulary) -> None:
    (place / "other.txt").write_text("Здесь один.\nOne is here.\n1 + 1\n")
    task = BitsPerByte("text", ("held.txt", "other.txt"))
    scorer = open_scorer(str(folder_of(tiny.language_model(vocab_size=1_024), vocabulary, place / "model")))
    found = task.measure(scorer, task.read(str(place)))
    assert set(found.parts) == {"held.txt", "other.txt", "latin script", "cyrillic script", "no script"}
    alone = dataclasses.replace(task, texts=("other.txt",))
    assert alone.measure(scorer, alone.read(str(place))).figures["bits per byte"] == found.parts["other.txt"]
    lines = ("Здесь один.", "One is here.", "1 + 1")
    nats, cyrillic = -scorer.log_likelihoods(lines), len(lines[0].encode())
    assert found.parts["cyrillic script"] == pytest.approx(nats[0] / np.log(2) / cyrillic, rel=1e-5)


def test_a_model_without_a_vocabulary_is_refused_before_another_one_is_measured(place, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, place / "model")
    shutil.copytree(place / "model", place / "bare")
    for name in ("spiece.model", "tokenizer.json", "tokenizer_config.json"):
        (place / "bare" / name).unlink(missing_ok=True)
    write_run(place / "run", tiny.model(vocab_size=1_024))
    for bare in ("bare", "run"):
        assert main.main(["results", "model", bare, "--suite=./suite.gin"]) == 2
        error = capsys.readouterr().err
        assert f"{bare} has no vocabulary beside it, without which no text is read; copy it there." in error
        assert error.count("\n") == 1 and not (place / "results").exists()


def test_a_disk_without_room_is_one_sentence(place, vocabulary) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, place / "model")
    program = (  # no file can grow
        # Python would keep what it has compiled cut off, for all processes after this one.
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64));"
        " sys.dont_write_bytecode = True;"
        " sys.argv = ['limba', 'results', 'model', '--suite=./suite.gin', '--output=out'];"
        " runpy.run_module('limba', run_name='__main__')"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(limba.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 74 and re.fullmatch(r"\S*out\S* cannot be written \(.*\);? .*\n", found.stderr), found
    assert not any(path.is_file() for path in (place / "out").rglob("*.json"))


@pytest.mark.slow
def test_what_had_ended_before_a_kill_is_not_repeated(place, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, place / "model")
    command = ["results", "model", "--suite=./suite.gin", "--output=out"]
    program = [sys.executable, "-m", "limba", *command]
    kept = lambda: {path: path.stat().st_mtime_ns for path in (place / "out" / "outcomes").glob("*.json")}
    with subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(Path(limba.__file__).parent.parent)}) as killed:
        wait_until(lambda: kept() or killed.poll() is not None)
        killed.kill()
    before = kept()
    assert 0 < len(before) < 4 and not (place / "out" / "results.txt").exists()
    assert main.main(command) == 0, capsys.readouterr().err
    assert f"{4 - len(before)} outcomes computed" in capsys.readouterr().out
    assert before.items() <= kept().items() and len(kept()) == 4


def write_names(folder: Path, test: int) -> None:
    """A suite of similarities and named entities, whose files name some words."""
    chosen = random.Random(0)
    names = ["Ion", "Ana", "Cluj", "Vardar"]
    for name, count in (("train", 40), ("test", test)):
        pairs = [(chosen.choice(names), chosen.random()) for _ in range(count)]
        rows = [f"{5 * share:.1f}\t{word} {share:.3f}\t{word} este" for word, share in pairs]
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
        sentences = [f"1\t{word}{share:.3f}\tB-PERSON\n2\teste\tO\n" for word, share in pairs]
        (folder / f"{name}.conllu").write_text("\n".join(sentences))
    (folder / "suite.gin").write_text(
        "sts/Similarity:\n  train = 'train.tsv'\n  test = 'test.tsv'\n  score = 0\n  first = 1\n  second = 2\n"
        "ronec/NamedEntities:\n  train = 'train.conllu'\n  test = 'test.conllu'\n"
    )


@pytest.mark.night
def test_a_fine_tuning_that_was_killed_gives_the_table_of_an_unbroken_one(place, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024, **NARROW), vocabulary, place / "model")
    write_names(place, test=520)
    command = ["results", "model", "--suite=./suite.gin", "--tasks=ronec", "--seeds=2", "--quick"]
    assert main.main([*command, "--output=whole"]) == 0, capsys.readouterr().err
    table = (place / "whole" / "results.json").read_text()
    found = json.loads(table)
    assert "and 500 test examples" in found["notes"][0] and "malformed outputs of 500:" in found["notes"][1]
    cells = [each for each in found["cells"] if each["column"].startswith("model")]
    assert all(each["interval"][0] <= each["mean"] <= each["interval"][1] for each in cells)

    program = [sys.executable, "-m", "limba", *command, "--output=out"]
    total = len(list((place / "whole" / "outcomes").glob("*.json")))
    kept = lambda: {path: path.stat().st_mtime_ns for path in (place / "out" / "outcomes").glob("*.json")}
    environment = {**os.environ, "PYTHONPATH": str(Path(limba.__file__).parent.parent)}
    for count in (1, 2):  # the first seed has to be trained again, then the second one's training is broken off
        with subprocess.Popen(program, env=environment) as killed:
            wait_until(lambda: len(kept()) >= count or killed.poll() is not None)  # noqa: B023
            killed.kill()
        before = kept()
        assert count <= len(before) < total and not (place / "out" / "results.json").exists()
    assert main.main([*command, "--output=out"]) == 0, capsys.readouterr().err
    assert f"{total - len(before)} outcomes computed" in capsys.readouterr().out
    assert before.items() <= kept().items() and len(kept()) == total
    assert (place / "out" / "results.json").read_text() == table


def small(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """A protocol of one rate and few epochs."""
    fast = dataclasses.replace(PROTOCOL, learning_rates=(1e-3,), most_train=48, most_dev=16, **changes)
    monkeypatch.setattr(protocol, "PROTOCOL", fast)


@pytest.mark.slow
def test_a_run_and_its_converted_model_have_the_same_table_of_two_tasks(place, vocabulary, monkeypatch, capsys) -> None:
    small(monkeypatch, epochs=2)
    write_names(place, test=40)
    write_run(place / "a" / "model", tiny.model(vocab_size=1_024, **NARROW))
    shutil.copy(vocabulary, place / "a" / "model" / "spiece.model")
    limba.load(place / "a" / "model").save(place / "b" / "model")
    tables = []
    for number, path in enumerate(("a/model", "b/model")):
        command = ["results", path, "--suite=./suite.gin", f"--output=out{number}", "--seeds=2"]
        assert main.main(command) == 0, capsys.readouterr().err
        tables.append((place / f"out{number}" / "results.json").read_text())
    assert tables[0] == tables[1], "each fine-tuned its own model"


@pytest.mark.night
def test_shuffled_labels_give_chance(place, vocabulary, monkeypatch, capsys) -> None:
    small(monkeypatch, epochs=3)
    folder_of(tiny.model(vocab_size=1_024, **NARROW), vocabulary, place / "model")
    chosen = random.Random(0)
    for name, count in (("train", 64), ("test", 200)):
        word = lambda: chosen.choice(["yes", "no"])
        rows = [(word(), f"{chosen.random():.4f} {word()}") for _ in range(count)]
        (place / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": t, "label": label}) for label, t in rows))
    (place / "suite.gin").write_text(
        "answer/Classification.train = 'train.jsonl'\nanswer/Classification.test = 'test.jsonl'\n"
    )
    assert main.main(["results", "model", "--suite=./suite.gin", "--output=out", "--seeds=1"]) == 0
    cells = json.loads((place / "out" / "results.json").read_text())["cells"]
    found = {each["column"]: each for each in cells if each["figure"] == "accuracy"}
    chance = 50 + 2.58 * 100 * (0.25 / 200) ** 0.5  # 99 % of what chance gives of 200 examples
    assert found["model"]["mean"] < chance and found["model, random weights"]["mean"] < chance, found
    assert found["model, random weights"]["deviation"] is None

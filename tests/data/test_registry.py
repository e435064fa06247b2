"""What tasks/ registers is in seqio's registries as soon as seqio is there, and what these have is found here."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import seqio

from limba.config import ConfigError, DataConfig, InputError
from limba.data import task_modules
from limba.data.bridge.seqio_objects import as_seqio
from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.objectives.supervised import prefix_of
from limba.data.registry import Feature, Mixture, MixtureRegistry, Task, TaskRegistry
from limba.data.sources import FileSource
from limba.data.tasks import check_prefix, resolve_task
from limba.data.vocabulary.vocabularies import ByteVocabulary
from tests.shipped import ROOT

# What a task's examples are, read by seqio and by the plain engine from the same documents.
PROGRAM = """
import json, sys
order = sys.argv[1]
if order == "seqio first":
    import seqio
from limba.data import task_modules
task_modules.import_all(task_modules.all_names())
from limba.data.registry import MixtureRegistry, TaskRegistry

before = "seqio" in sys.modules
names = {registry: sorted(registry.names()) for registry in (TaskRegistry, MixtureRegistry)}
import seqio
from limba.data.draws import Draws
from limba.data.objectives.choice import examples_of

kinds = ((TaskRegistry, seqio.TaskRegistry, seqio.Task), (MixtureRegistry, seqio.MixtureRegistry, seqio.Mixture))
own = {ours.__name__: names[ours] for ours, _, _ in kinds}
absent = [name for ours, theirs, kind in kinds for name in names[ours] if type(theirs.get(name)) is not kind]
lengths, task = {"inputs": 48, "targets": 24}, TaskRegistry.get("t5_mlm")
plain = lambda examples: [{name: example[name].tolist() for name in ("inputs", "targets")} for example in examples]
wanted = plain(examples_of(task, lengths, task.source.documents("train", shuffle=False, num_epochs=1), Draws(7)))
theirs = seqio.get_mixture_or_task("t5_mlm").get_dataset(lengths, "train", shuffle=False, seed=7)
found = plain(theirs.as_numpy_iterator())
other = plain(examples_of(task, lengths, task.source.documents("train", shuffle=False, num_epochs=1), Draws(8)))
print(json.dumps({"before": before, "own": own, "absent": absent, "wanted": wanted, "found": found, "other": other}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["limba first", "seqio first"])
def test_shipped_tasks_are_seqio_s_own_in_either_order(
    order: str, tmp_path: Path, corpus: Path, vocabulary: Path
) -> None:
    (tmp_path / "corpus").mkdir()
    lines = corpus.read_text().splitlines(keepends=True)[:20]
    (tmp_path / "corpus" / "first.jsonl").write_text("".join(lines))
    (tmp_path / "vocabulary.model").write_bytes(vocabulary.read_bytes())
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, order]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["before"] is (order == "seqio first")  # our tasks alone import no seqio
    assert {"t5_mlm", "demo_span_corruption"} <= set(told["own"]["TaskRegistry"]) and told["own"]["MixtureRegistry"]
    assert told["absent"] == []
    assert len(told["wanted"]) > 50 and told["found"] == told["wanted"] != told["other"]


def task(name: str, registry: type = TaskRegistry, feature: type = Feature, vocabulary: object = None) -> Task:
    """Registers a task of bytes under a name that is removed after the test."""
    features = dict.fromkeys(("inputs", "targets"), feature(vocabulary or ByteVocabulary(100)))
    steps = [tokenize_documents, span_corruption]
    return registry.add(f"registered_{name}", FileSource("nowhere.jsonl"), features, steps)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Removes what a test has registered."""
    yield
    for ours, theirs in ((TaskRegistry, seqio.TaskRegistry), (MixtureRegistry, seqio.MixtureRegistry)):
        for name in [name for name in ours.names() if name.startswith("registered_")]:
            ours.remove(name)
            assert name not in theirs.names()


def test_what_is_registered_now_is_in_both() -> None:
    made = task("now")
    provider = seqio.TaskRegistry.get("registered_now")
    assert type(provider) is seqio.Task and TaskRegistry.get("registered_now") is made
    vocabulary = provider.output_features["targets"].vocabulary
    assert provider.source is made.source and vocabulary == seqio.ByteVocabulary(100)
    assert isinstance(provider, Task) and not isinstance(provider, Mixture) and isinstance(made, Task)


@pytest.mark.slow
def test_a_user_s_module_may_register_a_task_before_it_imports_seqio(tmp_path: Path) -> None:
    """Of the finders that are there while it is imported, one asks all the others."""
    (tmp_path / "mine.py").write_text(
        "from limba.data.registry import TaskRegistry\n"
        "from limba.data.sources import FileSource\n"
        "TaskRegistry.add('mine', FileSource('a.txt'), {}, [])\n"
        "import seqio\n"
    )
    program = (
        "from limba.tools.migrate import old_datasets\n"
        "with old_datasets.importing():\n"
        "    import mine\n"
        "print(*mine.seqio.TaskRegistry.names())\n"
    )
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 0 and "mine" in done.stdout.split(), done.stderr[-2000:]


def test_a_user_s_task_of_seqio_is_found() -> None:
    theirs = seqio.TaskRegistry.add(
        "registered_theirs",
        seqio.TextLineDataSource({"train": "nowhere.txt"}),
        preprocessors=[],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )
    assert TaskRegistry.get("registered_theirs") is theirs is as_seqio(theirs)
    assert "registered_theirs" in TaskRegistry.names() and isinstance(theirs, Task)
    seqio.MixtureRegistry.add("registered_of_theirs", ["registered_theirs"], default_rate=2.0)
    mixture = MixtureRegistry.get("registered_of_theirs")
    assert isinstance(mixture, Mixture) and mixture.get_rate(theirs) == 2.0
    ours = Mixture("ours", [("registered_of_theirs", 3.0)])  # tasks of seqio in a mixture of ours
    assert [part.name for part in ours.tasks] == ["registered_theirs"] and ours.get_rate(theirs) == 3.0


def test_what_cannot_be_registered_or_found_is_said() -> None:
    task("twice")
    task("theirs", seqio.TaskRegistry, seqio.Feature, seqio.ByteVocabulary(100))
    for name in ("twice", "theirs"):
        with pytest.raises(InputError, match=f"^The name registered_{name} is registered already; give another one.$"):
            task(name)
    with pytest.raises(InputError, match="^registered_twise is not registered; did you mean registered_twice\\?$"):
        TaskRegistry.get("registered_twise")
    with pytest.raises(InputError, match="^registered_twise is not registered"):
        MixtureRegistry.add("registered_mixture", ["registered_twise"], default_rate=1.0)
    without = "^The mixture registered_mixture has no task, or one without a rate; give each a rate, or default_rate.$"
    twice = [("registered_twice", None), ("registered_twice", 1.0)]
    for tasks in ([], ["registered_twice"], [("registered_twice", 1.0), "registered_theirs"], twice):
        with pytest.raises(InputError, match=without):
            MixtureRegistry.add("registered_mixture", tasks)
    alone = TaskRegistry.add("registered_alone", FileSource("nowhere.jsonl"), {"targets": Feature(ByteVocabulary())})
    with pytest.raises(InputError, match="mixture registered_mixture have different output_features; give all the sa"):
        MixtureRegistry.add("registered_mixture", ["registered_twice", alone], default_rate=1.0)
    assert "registered_mixture" not in {*MixtureRegistry.names(), *seqio.MixtureRegistry.names()}


WRONG_RATES = (float("nan"), float("inf"), -1, -0.5, "many")


@pytest.mark.parametrize("rate", WRONG_RATES)
def test_a_rate_that_is_none_is_refused_where_it_is_registered(rate: object) -> None:
    for name in "ab":
        task(name)
    sentence = f"^The rate of registered_a in mixture registered_mixture is {rate!r}; give a number from 0 on, where 0"
    with pytest.raises(InputError, match=sentence):
        MixtureRegistry.add("registered_mixture", [("registered_a", rate), ("registered_b", 2.0)])
    with pytest.raises(InputError, match=sentence):
        MixtureRegistry.add("registered_mixture", ["registered_a"], default_rate=rate)
    assert "registered_mixture" not in {*MixtureRegistry.names(), *seqio.MixtureRegistry.names()}


@pytest.mark.parametrize("rate", WRONG_RATES[:-1])
def test_a_rate_that_is_none_is_refused_of_functions_and_of_seqio_too(rate: float) -> None:
    features = dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(100)))
    for name in "ab":
        source = FileSource("nowhere.jsonl")
        seqio.TaskRegistry.add(f"registered_{name}", source, preprocessors=[], output_features=features)
    MixtureRegistry.add("registered_function", [("registered_a", lambda task: rate), ("registered_b", 2.0)])
    seqio.MixtureRegistry.add("registered_of_theirs", [("registered_a", rate), ("registered_b", 2.0)])
    for name in ("registered_function", "registered_of_theirs"):
        data = DataConfig(name, {"inputs": 8, "targets": 8}, 4, vocabulary="byte")
        with pytest.raises(InputError, match=f"^The rate of registered_a in mixture {name} is {rate}.*; give a number"):
            resolve_task(data)


def test_a_rate_of_0_leaves_a_task_out_but_not_all_of_them() -> None:
    for name in "ab":
        task(name)
    MixtureRegistry.add("registered_mixture", [("registered_a", 0), ("registered_b", 2.0)])
    mixture = MixtureRegistry.get("registered_mixture")
    assert [mixture.get_rate(part) for part in mixture.tasks] == [0.0, 2.0]
    for name, rate, total in (("none", 0.0, "0"), ("more", 1e308, "inf")):
        with pytest.raises(InputError, match=f"^The rates of mixture registered_{name} add up to {total}, so no task"):
            MixtureRegistry.add(f"registered_{name}", ["registered_a", "registered_b"], default_rate=rate)


def test_one_prefix_for_tasks_with_prefixes_of_their_own_is_refused() -> None:
    """Both directions of a translation were trained with the prompt of one."""
    task_modules.import_all(["tasks.en_ms"])
    data = DataConfig("en_ms_both", {"inputs": 8, "targets": 8}, 4, vocabulary="byte", prefix="translate: ")
    sentence = "is one text for all inputs, and the tasks of mixture en_ms_both have different ones .* leave it None"
    with pytest.raises(ConfigError, match=sentence):
        check_prefix(data)
    resolve_task(data)  # a run that was trained so is still read
    check_prefix(dataclasses.replace(data, prefix=""))
    own = resolve_task(dataclasses.replace(data, prefix=None))
    assert [prefix_of(task) for task in own.tasks] == ["translate English to Malay: ", "translate Malay to English: "]


def test_rates_of_nested_mixtures_are_seqio_s() -> None:
    for name in "abcd":
        task(name)
    by_name = lambda part: float(ord(part.name[-1]) - ord("a") + 1)
    inner = [("registered_a", 3.0), ("registered_b", by_name)]
    middle = [("registered_inner", 5.0), ("registered_c", 0.5)]
    outer = ["registered_middle", ("registered_inner", 2.5), ("registered_b", 0.25), "registered_d"]
    for name, parts in (("inner", inner), ("middle", middle), ("outer", outer)):
        theirs = _of_seqio(name, parts)
        ours = MixtureRegistry.add(f"registered_{name}", parts, default_rate=1.5)
        kept = seqio.MixtureRegistry.get(f"registered_{name}")
        assert type(kept) is seqio.Mixture and ours.total_rate == pytest.approx(theirs.total_rate, rel=1e-12)
        names = sorted(part.name for part in theirs.tasks)
        assert [part.name for part in ours.tasks] == sorted(part.name for part in kept.tasks) == names
        for part in theirs.tasks:
            wanted = theirs.get_rate(part)
            assert wanted > 0
            assert ours.get_rate(TaskRegistry.get(part.name)) == pytest.approx(wanted, rel=1e-12)
            assert kept.get_rate(part) == pytest.approx(wanted, rel=1e-12)


def _of_seqio(name: str, parts: list) -> seqio.Mixture:
    """Returns seqio's own mixture of the same parts, under another name, whose mixtures are seqio's own too."""
    pairs = [part if isinstance(part, tuple) else (part, 1.5) for part in parts]
    mixtures = ("registered_inner", "registered_middle")
    known = [(OF_SEQIO[part] if part in mixtures else part, rate) for part, rate in pairs]
    OF_SEQIO[f"registered_{name}"] = seqio.Mixture(f"registered_{name}", known)
    return OF_SEQIO[f"registered_{name}"]


OF_SEQIO: dict[str, seqio.Mixture] = {}

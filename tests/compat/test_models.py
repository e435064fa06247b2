"""Models go to transformers and back, by both versions that people have: 5 here, 4.57.6 in one process of its own.

Each folder lies beside the logits of the program that wrote it; `limba.load` must give them within 1e-4.
"""

import dataclasses
import functools
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import transformers

import limba
from limba.cli import convert as command
from limba.data.vocabulary.load import load_vocabulary
from limba.export.huggingface import import_folder
from limba.formats import architectures, huggingface
from limba.formats.huggingface_files import Form, write_folder
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.formats.names import unflatten
from limba.inference.source import VocabularyName, evaluated, find
from limba.model import Network
from tests.compat import families, overlay
from tests.compat.in_old import Kept
from tests.export.runs import arrays_of, write_run
from tests.tiny import stack_layers

pytestmark = pytest.mark.night
LIMIT = 1e-4
TIE_WARNING = "specifies to tie shared.weight to lm_head.weight"  # of transformers 5 for every T5 with an own layer


@functools.cache
def network(config):
    return jax.jit(Network(config).apply)


def computed(params, config) -> np.ndarray:
    rows = {"encoder": families.INPUTS, "decoder": families.TARGETS}
    batch = {f"{side}_input_tokens": np.int32(ids) for side, ids in rows.items()}
    batch |= {"decoder_target_tokens": np.int32(families.TARGETS)}
    return np.asarray(network(config)(params, batch))


def loaded(folder: Path) -> np.ndarray:
    trained = limba.load(folder)
    return computed(jax.device_get(trained.params), trained.network.config)


def read(folder: Path) -> np.ndarray:
    """As `limba.load` reads, without placing the parameters on eight devices, which takes most of the time."""
    source = find(str(folder))
    arrays = source.arrays(0)
    return computed(unflatten(stack_layers({name: arrays[name] for name in arrays})), evaluated(source.model))


def random_arrays(config) -> dict[str, np.ndarray]:
    if not config.is_decoder_only:
        return arrays_of(config)
    random = np.random.default_rng(0)
    shapes = architectures.shapes(config)
    drawn = {name: random.standard_normal(shape) * shape[0] ** -0.5 for name, shape in shapes.items()}
    return {name: np.float32(array + name.endswith("scale")) for name, array in drawn.items()}


def write_ours(directory: Path, models: Path, vocabulary: Path, version: int) -> None:
    """Folders as Limba writes them for a version of transformers, random weights, with its own logits beside them."""
    for family in families.FAMILIES:
        name = VocabularyName("byte", 125) if family == "byt5" else VocabularyName(str(vocabulary), 100)
        if families.is_decoder_only(family):
            name = name._replace(extra_ids=int(family == "modernbert"))
        for head in families.HEADS:
            config = huggingface.model_config(models / f"{family}-own")
            config = dataclasses.replace(config, logits_via_embedding=head == "tied")
            arrays = random_arrays(config)
            folder = directory / f"{family}-{head}"
            opened = load_vocabulary(name.path, name.extra_ids)
            write_folder(folder, arrays, config, Form(("pytorch",), "float32", version), (name, opened))
            np.save(folder / "logits.npy", computed(unflatten(stack_layers(arrays)), config))


@pytest.fixture(scope="module")
def lines():
    """What transformers 5 logs, from warnings up."""
    kept = Kept()
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.WARNING)  # an export's check, in any test before, wants errors only
    logger.addHandler(kept)
    transformers.utils.logging.disable_progress_bar()
    yield kept.lines
    logger.removeHandler(kept)
    logger.setLevel(level)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, vocabulary):
    """Folders of both versions, and ours, and each saved again or tuned by them."""
    shelf = tmp_path_factory.mktemp("models")
    families.write(shelf / "by_5", (*families.HEADS, "unscaled"))
    write_ours(shelf / "ours_4", shelf / "by_5", vocabulary, 4)
    write_ours(shelf / "ours_5", shelf / "by_5", vocabulary, 5)
    for family in ("t5_1_1", "llama"):
        config = huggingface.model_config(shelf / "by_5" / f"{family}-own")
        write_run(shelf / "runs" / family, config)
        flags = ["--no_check", "--formats=pytorch", f"--vocabulary={vocabulary}"]
        flags += ["--extra_ids=0"] if family == "llama" else []
        command.run(["export", str(shelf / "runs" / family), str(shelf / "out"), *flags])
        shutil.copytree(shelf / "out" / "step_5", shelf / "cards" / family)
        shutil.rmtree(shelf / "out")
    return shelf


@pytest.fixture(scope="module")
def in_old(shelf):
    """The report of transformers 4.57.6, which has written its folders beside ours; made by pip where it is absent."""
    try:
        environment = overlay.environment()
    except RuntimeError as error:
        pytest.fail(str(error))
    script = [sys.executable, "-m", "tests.compat.in_old", str(shelf)]
    ended = subprocess.run(script, env=environment, cwd=overlay.ROOT, capture_output=True, text=True, check=False)
    assert not ended.returncode, ended.stderr[-3000:]
    return json.loads((shelf / "in_old.json").read_text())


@pytest.fixture(scope="module")
def in_new(shelf, in_old, lines):
    """What transformers 5 makes of ours: the differences of logits, and the lines of its log for each folder."""
    for folder in sorted((shelf / "by_4").iterdir()):
        families.keep(families.opened(folder), shelf / "by_4_again_by_5" / folder.name)
    return families.go_through(shelf / "ours_5", shelf / "again_by_5", shelf / "tuned_by_5", lines)


def test_4_57_computes_ours_and_says_nothing(in_old):
    assert in_old["version"] == "4.57.6" and len(in_old["differences"]) == 2 * len(families.FAMILIES)
    assert max(in_old["differences"].values()) < LIMIT, in_old["differences"]
    assert not any(in_old["said"].values()), in_old["said"]


def test_5_computes_ours_and_says_at_most_what_it_says_of_each_such_t5(in_new):
    differences, said = in_new
    assert len(differences) == 2 * len(families.FAMILIES) and max(differences.values()) < LIMIT, differences
    for name, lines in said.items():
        is_untied_t5 = name.endswith("-own") and not families.is_decoder_only(name.partition("-")[0])
        assert [TIE_WARNING in line for line in lines] == [True] * is_untied_t5, (name, lines)


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("door", [loaded, read])
def test_limba_computes_what_the_writer_does(family, door, shelf, in_old, in_new):
    """Saved by 4.57 and by 5 from scratch; ours, tuned there; and all of these opened and saved again."""
    kinds = ("by_4", "by_5", "tuned_by_4", "tuned_by_5")
    if door is read:
        kinds = ("ours_4", "ours_5", "by_4_again_by_5", "again_by_4", "again_by_5")
    for kind in kinds:
        folders = sorted((shelf / kind).glob(f"{family}-*"))
        assert {folder.name.partition("-")[2] for folder in folders} >= set(families.HEADS)
        for folder in folders:
            np.testing.assert_allclose(door(folder), np.load(folder / "logits.npy"), atol=LIMIT, err_msg=str(folder))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_an_import_has_the_own_layer_of_a_folder_by_5(family, shelf, in_new, tmp_path):
    folder = shelf / "again_by_5" / f"{family}-own"
    import_folder(folder, tmp_path / "run")
    arrays = LimbaCheckpoint(tmp_path / "run" / "checkpoints" / "0")
    params = unflatten(stack_layers({name: arrays[name] for name in arrays}))
    model = huggingface.model_config(folder)
    np.testing.assert_allclose(computed(params, model), np.load(folder / "logits.npy"), atol=LIMIT)
    command.run(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--no_check", "--formats=pytorch"])
    np.testing.assert_allclose(read(tmp_path / "out/step_0"), np.load(folder / "logits.npy"), atol=LIMIT)


def test_the_code_of_a_card_runs_in_both(shelf, in_old, monkeypatch, capsys):
    for family, tag in (("t5_1_1", None), ("llama", "text-generation")):
        card = shelf / "cards" / family / "README.md"
        monkeypatch.chdir(card.parent)
        exec(compile(families.code_of(card), str(card), "exec"), {})
        assert capsys.readouterr().out.strip()
        tags = [line for line in card.read_text().splitlines() if line.startswith("pipeline_tag:")]
        assert tags == ([] if tag is None else [f"pipeline_tag: {tag}"])
        assert tag is None or tag in transformers.pipelines.SUPPORTED_TASKS

"""A first row of a run, without a suite: what needs no labels, in minutes.

Bits per byte of the run's validation text, and minimal pairs, where the file of its language lies in the folder of
data.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from limba.api import RunData, Task, Texts, UnitSource, described, load, write_whole
from limba.config import ConfigError, InputError, NoModelError, RunConfig, UntrustedModuleError
from limba.tools.results import files
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.pairs import MinimalPairs
from limba.tools.results.scoring import run_of, ways_of
from limba.tools.results.scoring_methods import MASKED
from limba.tools.results.suites import Suite

NAME = "first_row"
TEXT_BYTES = 100_000  # of the validation text that is scored …
MASKED_BYTES = 10_000  # … and where a model is an encoder, which reads a row for each token
INSTEAD = "write some text into held_out.txt in a folder FOLDER, and add --suite=any --data=FOLDER --tasks=text"
# MultiBLiMP names a language by its code in ISO 639-3, a card by its two-letter code, where it has one.
CODES = {
    **{"ab": "abk", "am": "amh", "ar": "arb", "be": "bel", "bg": "bul", "bn": "ben", "br": "bre", "bs": "hbs"},
    **{"ca": "cat", "cs": "ces", "cy": "cym", "da": "dan", "de": "deu", "el": "ell", "en": "eng", "es": "spa"},
    **{"et": "est", "eu": "eus", "fa": "fas", "fi": "fin", "fo": "fao", "fr": "fra", "ga": "gle", "gd": "gla"},
    **{"gl": "glg", "gu": "guj", "he": "heb", "hi": "hin", "hr": "hbs", "hu": "hun", "hy": "hye", "is": "isl"},
    **{"it": "ita", "ka": "kat", "kk": "kaz", "ky": "kir", "la": "lat", "lt": "lit", "lv": "lav", "mk": "mkd"},
    **{"mr": "mar", "nl": "nld", "pl": "pol", "pt": "por", "ro": "ron", "ru": "rus", "sa": "san", "se": "sme"},
    **{"sk": "slk", "sl": "slv", "sq": "sqi", "sr": "hbs", "sv": "swe", "ta": "tam", "tr": "tur", "ug": "uig"},
    **{"uk": "ukr", "ur": "urd", "uz": "uzb", "wo": "wol"},
}


def suite_of(args: argparse.Namespace) -> Suite:
    """Returns the tasks of the command's models without a suite; the text is written into the folder of the results.

    The text comes from the first run among the models. Raises InputError if there is no run, or it has no text.
    """
    runs = [model for model in args.model if run_of(model) is not None]
    if not runs:
        try:
            described(args.model[0])
        except NoModelError:
            raise
        except InputError:  # a model that transformers may open
            pass
        raise InputError(
            f"{args.model[0]} is not a run, so it has no validation text to measure without a suite; {INSTEAD}, or"
            " give another --suite."
        )
    is_masked = any(MASKED in ways_of(model) for model in args.model)
    run, text = _validation_text(runs[0], args.imports, MASKED_BYTES if is_masked else TEXT_BYTES)
    folder = Path(args.output or f"results/{NAME}").expanduser().absolute()
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    file = folder / f"validation-{digest}.txt"
    if not file.exists():
        write_whole(str(file), text)
    tasks: list[BitsPerByte | MinimalPairs] = [BitsPerByte("validation_text", (str(file),))]
    pairs = _pairs(run, args.data)
    if pairs is not None:
        tasks.append(MinimalPairs("agreement", pairs))
    language = run.card.language[0].partition("-")[0] if run.card.language else None
    return Suite(NAME, language, tuple(tasks))


def _validation_text(model: str, imports: list[str], size: int) -> tuple[RunConfig, str]:
    """Returns a run's configuration, and about so many bytes of its validation text, the same ones each time."""
    trained = load(model, imports=imports)
    run = trained.source.run
    if run is None:
        raise InputError(f"{model} does not say what text it was trained on; {INSTEAD}.")
    split = run.data.validation_split
    try:
        data = RunData(run.data, trained.task)
        parts = [part for part in data.parts if not RunData(run.data, part).has_pairs]
        documents = [document for part in parts for document in _documents(data, part, split, size // len(parts))]
    except UntrustedModuleError:
        raise
    except (InputError, ConfigError) as error:
        raise InputError(f"{model} gives no validation text: {str(error).rstrip('.')}. Or {INSTEAD}.") from error
    if not parts:
        raise InputError(
            f"{model} has learned pairs of inputs and targets, so its validation split has no running text; {INSTEAD}."
        )
    text = "\n".join(document.decode("utf-8", "replace") for document in documents)
    text = text.encode()[:size].decode("utf-8", "ignore")  # one document may be longer
    if not text.strip():
        raise InputError(f"{model} has no text in its split {split!r}; {INSTEAD}.")
    return run, text


def _documents(data: RunData, part: Task, split: str, size: int) -> Iterable[bytes]:
    """Returns documents of a part's split, of about so many bytes."""
    if not isinstance(part.source, UnitSource):
        return _of_seqio(data, part, split, size)
    texts = Texts.of_task(part)
    texts.check_not_empty(split)
    documents, _ = texts.sample(split, size)
    return texts.in_columns(documents)


def _of_seqio(data: RunData, part: Task, split: str, size: int) -> Iterator[bytes]:
    """Yields the texts of a part that another library reads, up to so many bytes."""
    left = size
    for example in data.elements(part, split):
        texts = example if isinstance(example, Mapping) else {"text": example}  # some functions give the text alone
        text = next((texts[key] for key in ("text", "targets") if isinstance(texts.get(key), bytes)), None)
        if text is None:
            raise InputError(f"it gives {', '.join(map(str, texts))} and no 'text'")
        yield text
        left -= len(text)
        if left <= 0:
            return


def _pairs(run: RunConfig, folder: str) -> str | None:
    """Returns the file of minimal pairs of a run's language in a folder; says where one is looked for without it."""
    languages = [tag.partition("-")[0] for tag in run.card.language or ()]
    codes = [CODES.get(language, language) for language in languages]
    names = [name for code in codes for name in (f"{code}/data.tsv", f"{code}.tsv")]
    for name in [*names, "pairs.tsv"]:
        if files.found_at(folder, name) is not None:
            return name
    if codes:
        said = (
            f"hf download jumelet/multiblimp {codes[0]}/data.tsv --repo-type=dataset --local-dir {folder} gets them"
            " from MultiBLiMP, if it has the language"
        )
    else:
        said = "the run names no language (CardConfig.language); pairs.tsv is looked for"
    print(f"No minimal pairs are in {folder}: {said}.", file=sys.stderr, flush=True)
    return None

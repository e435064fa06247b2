"""Runs whose text or vocabulary is broken in one way each: the files of one, its flags, and the code of its finding.

Sentences are made of phrases in several languages, so that documents are many and no two of them are alike; or
documents come from `REAL`, with which test_real_text.py fills this table anew.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import json
import random
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import sentencepiece

from limba.cli import main
from limba.tools.preflight import preflight
from tasks.demo import pydoc_corpus

PHRASES = {  # language: beginnings, middles, ends of sentences
    "es": (
        "El panadero|La vecina|Un viejo barco|Nuestra profesora|El río|La niña pequeña|Aquel jardín|Mi hermano",
        "llegó con la lluvia|cantaba para todos|perdió las llaves|trajo una carta|cruzó el puente|miró hacia el mar",
        "antes de la cena|después del mercado|en la plaza mayor|cuando era invierno|sin decir nada|por última vez",
    ),
    "da": (
        "Den gamle fisker|Min søster|En lille båd|Skolens lærer|Vinden fra vest|Naboens hund|Hele byen|Det røde hus",
        "ventede på færgen|sang en vise|fandt en nøgle|kom sent hjem|var ikke bange|så ud over fjorden",
        "efter regnen i går|med en kop kaffe|til det blev mørkt|på den anden side|før festen begyndte|og sagde intet",
    ),
    "el": (
        "Ο παλιός ψαράς|Η γειτόνισσα|Το μικρό καράβι|Ο δάσκαλος μας|Ο αέρας|Η πόλη όλη|Το κορίτσι|Ένα σύννεφο",
        "περίμενε το φως|έφερε ψωμί|έχασε το κλειδί|γύρισε αργά|τραγουδούσε σιγά|κοίταξε τη θάλασσα",
        "πριν από το βράδυ|μετά τη βροχή|στην πλατεία|χωρίς να μιλήσει|με χαρά|για τελευταία φορά",
    ),
    "ru": (
        "Старый рыбак|Моя соседка|Маленькая лодка|Наш учитель|Ветер с моря|Весь город|Эта девочка|Белое облако",
        "ждал парома|принесла хлеб|потеряла ключ|вернулся поздно|тихо пела|смотрела на реку",
        "после дождя|до самого вечера|на площади|не сказав ни слова|с большой радостью|в последний раз",
    ),
    "hi": (
        "बूढ़ा मछुआरा|मेरी पड़ोसन|छोटी नाव|हमारे शिक्षक|समुद्र की हवा|पूरा शहर|वह लड़की|सफ़ेद बादल",
        "घर लौट आया|रोटी लेकर आई|चाबी भूल गई|गीत गा रही थी|नदी देख रहा था|देर तक रुका",
        "बारिश के बाद|शाम से पहले|बाज़ार के पास|बिना कुछ कहे|बड़ी खुशी से|आखिरी बार",
    ),
    "ko": (
        "늙은 어부는|이웃집 아주머니는|작은 배는|우리 선생님은|바다 바람은|온 마을은|그 소녀는|흰 구름은",
        "빵을 가져왔다|열쇠를 잃었다|조용히 노래했다|강을 바라보았다|늦게 돌아왔다|배를 기다렸다",
        "비가 온 뒤에|저녁이 되기 전에|광장에서|말없이|기쁜 마음으로|마지막으로",
    ),
    "zh": (
        "老渔夫|我的邻居|小木船|我们的老师|海上的风|整座城市|那个女孩|一片白云",
        "带来了面包|丢了钥匙|轻声唱歌|望着河水|很晚才回来|等着渡船",
        "在雨后|在傍晚之前|在广场上|一言不发|满心欢喜|最后一次",
    ),
    "en": (
        "An old fisherman|My neighbour|A small boat|Our teacher|Wind from the sea|The whole town|That girl|The cloud",
        "waited for the ferry|brought some bread|lost the key|came home late|was singing to us|looked at the river",
        "after the rain|before it was dark|in the square|and said nothing|with great joy|for the last time",
    ),
}


REAL: dict[str, list[str]] = {}  # language: documents of real text
LEGACY = {"ja": "shift_jis", "ro": "iso8859_16"}  # encodings of text that is not UTF-8; else Latin-1
OTHER = {"da": "es", "zh": "da"}  # a second language, of another script if there is one; else English
SOUND = (Path(__file__).parents[1] / "broken" / "sound.gin").read_text()
PAIRS = """
from tasks import text_to_text
MIXTURE_OR_TASK_NAME = 'text_to_text'
TASK_FEATURE_LENGTHS = {'inputs': 384, 'targets': 384}
PACK = True
"""


def documents(language: str, number: int = 160, sentences: int = 4, seed: int = 0) -> list[str]:
    """Returns documents of sentences that differ, each told of a number of things; of a real text some of its own."""
    if language in REAL:
        return REAL[language][:number]
    draw = random.Random(f"{language} {seed}")
    slots = [part.split("|") for part in PHRASES[language]]
    stop = {"zh": "。", "hi": "।"}.get(language, ".")
    space = "" if language == "zh" else " "

    def sentence() -> str:
        two = space.join(map(draw.choice, slots)), space.join(map(draw.choice, slots[1:]))
        return f"{(',' + space).join(two)}{stop}"

    return [space.join(sentence() for _ in range(sentences + draw.randrange(3))) for _ in range(number)]


def write(name: str, texts: Sequence[str] | Sequence[dict[str, str]]) -> str:
    """Writes JSON lines, compressed by the name's end, and returns the name."""
    Path(name).parent.mkdir(exist_ok=True)
    rows = [text if isinstance(text, dict) else {"text": text} for text in texts]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def pairs(language: str, change: Callable[[int, str, str], tuple[str, str]] = lambda _, a, b: (a, b)) -> list[str]:
    """Writes pairs of a language and another, each changed, and returns the flags of a run that reads them."""
    texts = zip(documents(language, 400, 2), documents(OTHER.get(language, "en"), 400, 2), strict=True)
    rows = [change(number, a, b) for number, (a, b) in enumerate(texts)]
    return ["pairs.gin", corpus(write("pairs.jsonl", [{"inputs": a, "targets": b} for a, b in rows]))]


def corpus(value: object) -> str:
    return f"--gin.CORPUS={value!r}"


def of(texts: Sequence[str] | Sequence[dict[str, str]], *flags: str) -> list[str]:
    """Returns the flags of a run that reads these documents."""
    return ["sound.gin", corpus(write("text.jsonl", texts)), *flags]


def changed(language: str, change: Callable[[int, str], str] = lambda _, text: text, *flags: str) -> list[str]:
    """Writes documents of a language, each changed, and returns the flags of a run that reads them."""
    return of([change(number, text) for number, text in enumerate(documents(language))], *flags)


def vocabulary(language: str, size: int = 150, **options: object) -> str:
    """Trains a vocabulary of a language, "prose" being Python's manual, and returns the flag that names it."""
    texts = REAL.get(language) or (documents(language, seed=1) if language in PHRASES else _prose())
    size = max(size, len(set("".join(texts))) + 50) if language in REAL else size
    Path(f"{language}.model").write_bytes(_trained(tuple(texts), size, **options))
    return f"--gin.VOCABULARY={language + '.model'!r}"


@functools.cache
def _trained(texts: tuple[str, ...], size: int, **options: object) -> bytes:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=(model := io.BytesIO()), vocab_size=size, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return model.getvalue()


@functools.cache
def _prose() -> list[str]:
    pydoc_corpus("prose.jsonl")
    return [json.loads(line)["text"] for line in Path("prose.jsonl").read_text().splitlines()]


def legacy(language: str) -> list[str]:
    """Writes lines in an encoding of the language's own, of letters that this one has."""
    encoding = LEGACY.get(language, "latin-1")
    lines = [line for text in documents(language, 1500) for line in text.splitlines()]
    Path("text.txt").write_bytes("\n".join(lines).encode(encoding, "ignore"))
    return ["sound.gin", corpus("text.txt")]


def truncated_gzip(language: str) -> list[str]:
    path = Path(write("text.jsonl.gz", documents(language, 600)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return ["sound.gin", corpus(path.name)]


def broken_line(language: str) -> list[str]:
    path = Path(write("text.jsonl", documents(language)))
    lines = path.read_text().splitlines()
    lines[70] = lines[70][:-9]
    path.write_text("\n".join(lines) + "\n")
    return ["sound.gin", corpus(path.name)]


def same_file(language: str) -> list[str]:
    write("parts/a.jsonl", documents(language))
    shutil.copy("parts/a.jsonl", "parts/b.jsonl")
    return ["sound.gin", corpus("parts/*.jsonl")]


def another_script(language: str) -> list[str]:
    others = itertools.cycle(documents("el"))
    return changed(language, lambda n, t: next(others) if n % 10 else t, f"--gin.LANGUAGE={language!r}")


def of_other_letters(language: str) -> list[str]:
    return changed(language, lambda _, t: t, vocabulary(OTHER.get(language, "el")))


def of_another_language(language: str) -> list[str]:
    letters = "".join(sorted({*"".join(documents(language, 300))} - set(" \t\n\r\u3000\xa0")))
    size = 1_000 + len(letters)
    letters = letters if len(letters) < 500 else ""
    flags = vocabulary("prose", size, required_chars=letters), f"--gin.VOCAB_SIZE={size + 152}"
    return of(documents(language, 300), *flags)


MARKUP = '<html><body><div class="post-{}"><p>{}</p><br/><a href="/next">»</a></div></body></html>'

Run = Callable[[str], list[str]]
RUNS: dict[str, tuple[str, str, Run]] = {  # number and name of a broken run: (code, a language, its files in one)
    "21 another column": ("column", "el", lambda lang: of([{"body": text} for text in documents(lang)])),
    "23 another encoding": ("record-error", "es", legacy),
    "29 another script": ("another-script", "da", another_script),
    "30 few documents": ("num-data-shards", "ko", lambda lang: of(documents(lang, 6))),
    "35 truncated gzip": ("unit-error", "ru", truncated_gzip),
    "36 broken JSON": ("record-error", "ko", broken_line),
    "37 no such file": ("data-files", "es", lambda lang: [*of(documents(lang)), corpus("texts.jsonl")]),
    "39 the same file twice": ("equal-files", "da", same_file),
    "45 vocabulary of another script": ("lost-letters", "zh", of_other_letters),
    "46 vocabulary of another language": ("vocabulary-of-other-text", "es", of_another_language),
    "47 too few rows": ("vocab-size", "da",
                        lambda lang: changed(lang, lambda _, t: t, vocabulary(lang), "--gin.VOCAB_SIZE=128")),
    "49 no sentinels": ("no-sentinels", "da",
                        lambda lang: changed(lang, lambda _, t: t, vocabulary(lang), "--gin.EXTRA_IDS=0")),
    "50 capitals folded": (
        "vocabulary-folds", "da",
        lambda lang: changed(lang, lambda _, t: t, vocabulary(lang, normalization_rule_name="nmt_nfkc_cf"))),
    "51 no vocabulary": ("vocabulary", "da",
                         lambda lang: changed(lang, lambda _, t: t, "--gin.VOCABULARY='none.model'")),
    "54 cut examples": ("cut-examples", "da",
                        lambda lang: [*pairs(lang), "--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 16}"]),
}  # fmt: skip


# Those whose fix is to change the text: (code, a language, its files in one, and the files when that is done).
BY_HAND: dict[str, tuple[str, str, Run, Run]] = {
    "26 HTML": ("markup", "el", lambda lang: changed(lang, lambda n, t: MARKUP.format(n, t), vocabulary(lang)),
                lambda lang: changed(lang, lambda _, t: t, vocabulary(lang))),
    "32 empty documents": ("empty-documents", "hi",
                           lambda lang: changed(lang, lambda n, t: t if n % 5 > 2 else ""), changed),
    "34 one document": ("one-document", "es", lambda lang: of(["\n".join(documents(lang, 400))]),
                        lambda lang: of(documents(lang, 400))),
    "55 empty targets": ("empty-targets", "da", lambda lang: pairs(lang, lambda n, a, b: (a, b if n % 3 else " ")),
                         pairs),
}  # fmt: skip


def wrong(argv: Sequence[str]) -> list[dict]:
    """Returns the errors and warnings of a preflight in this process that compiles nothing, each with its section."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        preflight.run([*argv, "--no_compile", "--json"])
    sections = json.loads(said.getvalue())["sections"]
    lines = [{"section": section["title"], **line} for section in sections for line in section["lines"]]
    return [line for line in lines if line["level"] != "ok"]


def typed(fix: str, argv: list[str]) -> list[str]:
    """Does what the fix says, a command or a line of gin, and returns the run's flags after it."""
    for line in fix.splitlines():
        name, is_gin, value = line.partition(" = ")
        if line.startswith("limba "):
            if main.main(shlex.split(line)[1:]):
                raise RuntimeError(line)
        elif is_gin:
            argv = [*(word for word in argv if not word.startswith(f"--gin.{name}=")), f"--gin.{name}={value}"]
        else:
            subprocess.run(line, shell=True, check=True, executable="/bin/bash")
    return argv

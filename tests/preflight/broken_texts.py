"""Runs whose text or vocabulary is broken in one way each: the files of one, its flags, and the code of its finding.

Sentences are made of phrases in several languages, so that documents are many and no two of them are alike.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import sentencepiece

from limba.cli.demo import pydoc_corpus

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


def documents(language: str, number: int = 160, sentences: int = 4, seed: int = 0) -> list[str]:
    """Returns documents of sentences that differ, each told of a number of things."""
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


def pairs(change: Callable[[int, str, str], tuple[str, str]] = lambda _, a, b: (a, b)) -> list[str]:
    """Writes pairs of Danish and Spanish, each changed, and returns the flags of a run that reads them."""
    texts = zip(documents("da", 400, 2), documents("es", 400, 2), strict=True)
    rows = [change(number, a, b) for number, (a, b) in enumerate(texts)]
    return ["pairs.gin", corpus(write("pairs.jsonl", [{"inputs": a, "targets": b} for a, b in rows]))]


def corpus(value: object) -> str:
    return f"--gin.CORPUS={value!r}"


def of(texts: Sequence[str] | Sequence[dict[str, str]], *flags: str) -> list[str]:
    """Returns the flags of a run that reads these documents."""
    return ["sound.gin", corpus(write("text.jsonl", texts)), *flags]


def each(language: str, change: Callable[[int, str], str], *flags: str) -> list[str]:
    return of([change(number, text) for number, text in enumerate(documents(language))], *flags)


def vocabulary(language: str, size: int = 150, **options: object) -> str:
    """Trains a vocabulary of a language, "prose" being Python's manual, and returns the flag that names it."""
    texts = documents(language, seed=1) if language in PHRASES else _prose()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=language, vocab_size=size, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return f"--gin.VOCABULARY={language + '.model'!r}"


def _prose() -> list[str]:
    pydoc_corpus("prose.jsonl")
    return [json.loads(line)["text"] for line in Path("prose.jsonl").read_text().splitlines()]


def latin1() -> list[str]:
    text = "\n".join(documents("es", 1500))
    Path("text.txt").write_bytes(text.encode("latin-1"))
    return ["sound.gin", corpus("text.txt")]


def truncated_gzip() -> list[str]:
    path = Path(write("text.jsonl.gz", documents("ru", 600)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return ["sound.gin", corpus(path.name)]


def broken_line() -> list[str]:
    path = Path(write("text.jsonl", documents("ko")))
    lines = path.read_text().splitlines()
    lines[70] = lines[70][:-9]
    path.write_text("\n".join(lines) + "\n")
    return ["sound.gin", corpus(path.name)]


def same_file() -> list[str]:
    write("parts/a.jsonl", documents("da"))
    shutil.copy("parts/a.jsonl", "parts/b.jsonl")
    return ["sound.gin", corpus("parts/*.jsonl")]


def contaminated() -> list[str]:
    texts = documents("ru")
    files = {"train": write("text.jsonl", texts), "validation": write("validation.jsonl", texts[100:130])}
    return ["sound.gin", corpus(files)]


def near(language: str) -> list[str]:
    texts = documents(language)
    return of([*texts, *(f"{text} {number}" for number, text in enumerate(texts))])


def one_document() -> list[str]:
    return of(["\n".join(documents("es", 400))])


MARKUP = '<html><body><div class="post-{}"><p>{}</p><br/><a href="/next">»</a></div></body></html>'
BANNER = "Vi bruger cookies for at forbedre siden. {} Klik her for at acceptere alle cookies."
SPAM = "Billige ure og tasker, køb nu og spar halvdelen af prisen i dag hos os!"
LETTERS = "".join({*"".join(documents("es"))} - {" "})
OTHERS = itertools.cycle(documents("en"))

Run = Callable[[], list[str]]
RUNS: dict[str, tuple[str, Run]] = {  # number and name of a broken run: (code, its files)
    "21 another column": ("column", lambda: of([{"body": text} for text in documents("el")])),
    "22 mojibake": ("mojibake", lambda: each("es", lambda _, t: t.encode().decode("latin-1"))),
    "23 Latin-1": ("record-error", latin1),
    "24 half exact duplicates": ("duplicates", lambda: of(documents("da") * 2)),
    "25 half near-duplicates": ("near-duplicates", lambda: near("ru")),
    "26 HTML": ("markup", lambda: each("el", lambda n, t: MARKUP.format(n, t), vocabulary("el"))),
    "27 banner": ("recurring-lines", lambda: each("da", lambda _, t: BANNER.format(t))),
    "28 validation in training": ("validation-in-training", contaminated),
    "29 another language": ("another-language",
                            lambda: each("da", lambda n, t: next(OTHERS) if n % 10 else t, "--gin.LANGUAGE='da'")),
    "30 few documents": ("num-data-shards", lambda: of(documents("ko", 6))),
    "32 empty documents": ("empty-documents", lambda: each("hi", lambda n, t: t if n % 5 > 2 else "")),
    "34 one document": ("one-document", one_document),
    "35 truncated gzip": ("unit-error", truncated_gzip),
    "36 broken JSON": ("record-error", broken_line),
    "37 no such file": ("data-files", lambda: [*of(documents("es")), corpus("texts.jsonl")]),
    "38 NFD": ("decomposed-letters", lambda: each("es", lambda _, t: unicodedata.normalize("NFD", t))),
    "39 the same file twice": ("equal-files", same_file),
    "40 spam": ("repetitive", lambda: each("da", lambda n, t: t if n % 2 else f"{n} {SPAM * 6}")),
    "41 only addresses": ("only-addresses",
                          lambda: each("ko", lambda n, t: t if n % 2 else f"https://a.example/{n}?q={n * n}")),
    "42 sorted": ("sorted-text",
                  lambda: of([*documents("da"), *documents("es")], "--gin.SHUFFLE_TRAIN_EXAMPLES=False")),
    "43 personal data": ("personal-data",
                         lambda: each("el", lambda n, t: f"{t} Τηλ. +30 210 123{n:04d}, a{n}@mail.gr")),
    "44 NUL": ("control-characters", lambda: each("es", lambda n, t: t.replace(" ", "\0 ", n % 3), vocabulary("es"))),
    "45 vocabulary of another script": ("lost-letters", lambda: each("zh", lambda _, t: t, vocabulary("da"))),
    "46 vocabulary of another language": (
        "vocabulary-of-other-text",
        lambda: of(documents("es", 300), vocabulary("prose", 1_000, required_chars=LETTERS), "--gin.VOCAB_SIZE=1_152")),
    "47 too few rows": ("vocab-size", lambda: each("da", lambda _, t: t, vocabulary("da"), "--gin.VOCAB_SIZE=128")),
    "49 no sentinels": ("no-sentinels", lambda: each("da", lambda _, t: t, vocabulary("da"), "--gin.EXTRA_IDS=0")),
    "50 capitals folded": ("vocabulary-folds",
                           lambda: each("da", lambda _, t: t, vocabulary("da", normalization_rule_name="nmt_nfkc_cf"))),
    "51 no vocabulary": ("vocabulary", lambda: each("da", lambda _, t: t, "--gin.VOCABULARY='none.model'")),
    "54 cut examples": ("cut-examples",
                        lambda: [*pairs(), "--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 16}"]),
    "55 empty targets": ("empty-targets", lambda: pairs(lambda n, a, b: (a, b if n % 3 else " "))),
    "56 copied targets": ("copied-targets", lambda: pairs(lambda n, a, b: (a, b if n % 2 else a))),
}  # fmt: skip

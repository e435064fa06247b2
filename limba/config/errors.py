"""Errors that end a program with one sentence, and checks for the fields of configurations.

An error is data: its sentence, the field that it is about, and a fix. A sentence names a field by its full name,
`DataConfig.batch_size`, which is at once a placeholder: `worded` puts the name there that the user typed. So a sentence
that no front end has seen, in a log or from another process, is readable too. Nothing else looks into a sentence.
"""

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

HIDDEN = "***"
# What stands between :// and @, with a colon: user:password. The second form allows a password with a slash (keys of
# S3), where neither a port nor a chained address follows the colon (zip://…::https://…).
_PASSWORDS = (
    re.compile(r"(?<=://)[^\s/'\"]*:[^\s/'\"]*(?=@)"),
    re.compile(r"(?<=://)[^\s/:@'\"]+:(?!:|\d*(?:[/\s'\"]|$))[^\s@'\"]*(?=@)"),
    re.compile(r"(?<=http://)[^\s/'\"]+(?=@)|(?<=https://)[^\s/'\"]+(?=@)"),  # a token alone
)
_PARAMETER = re.compile(
    r"([?&](?:[\w.%-]*(?:token|signature|secret|passw|credential|apikey|accesskey|authorization)[\w.%-]*"
    r"|(?:[\w.%-]*[-_.])?(?:sig|key|auth|sas|pwd))=)[^\s&'\"#,;)\]}]*",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """Returns the text with *** for the passwords, tokens and signatures of all addresses in it.

    >>> without_credentials("https://ana:1234@example.org/a.txt?lang=ro&token=567 cannot be read")
    'https://***@example.org/a.txt?lang=ro&token=*** cannot be read'
    >>> without_credentials("abfs://container@account.dfs.core.windows.net/a.txt, gs://bucket/b@c.txt")
    'abfs://container@account.dfs.core.windows.net/a.txt, gs://bucket/b@c.txt'
    """
    if "://" not in text:
        return text
    for pattern in _PASSWORDS:
        text = pattern.sub(HIDDEN, text)
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)


# What the operating system reports where nothing can be written: no rights, a full disk, an ended quota.
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


# The placeholders of a sentence: fields, and `arguments` of a function; fields joined by "or" are one choice.
_NAME = r"(?:[A-Z]\w*Config\.[a-z]\w*|`\w+`)(?!\w)"
_PLACEHOLDER = re.compile(rf"(?<![\w./]){_NAME}(?: or {_NAME})*")


class Open(NamedTuple):
    """The value of a fix that its user has to choose, and what it must be."""

    words: str = ""

    def __repr__(self) -> str:
        return f"…  # {self.words}" if self.words else "…"


# What makes an input right: (field, value), or a line that a front end shows as it is.
Fix = tuple[str, object] | str
ELSEWHERE = "name an address that answers, or look from a machine whose network reaches it"  # a fix


def worded(sentence: str, names: Mapping[str, str]) -> str:
    """Returns the sentence with the names of a front end in place of those fields; no clause comes twice.

    >>> worded("DataConfig.batch_size 8 is below DataConfig.batch_size_x.", {"DataConfig.batch_size": "rows"})
    'rows 8 is below DataConfig.batch_size_x.'
    >>> both = {"AConfig.seed": "SEED", "BConfig.seed": "SEED"}
    >>> worded("AConfig.seed is 1; BConfig.seed is 1; x", both), worded("set AConfig.seed or BConfig.seed.", both)
    ('SEED is 1; x', 'set SEED.')
    >>> worded("The run is changed: AConfig.seed is 1; BConfig.seed is 1.", both)
    'The run is changed: SEED is 1.'
    """
    if not names:
        return sentence

    def typed(placeholder: re.Match[str]) -> str:
        """Returns what the user typed for fields joined by "or", each name once."""
        fields = placeholder[0].split(" or ")
        return " or ".join(dict.fromkeys(names.get(field, field) for field in fields))

    text = _PLACEHOLDER.sub(typed, sentence)
    end = "." if text.endswith(".") else ""
    clauses = list[str]()
    for clause in text.removesuffix(end).split("; "):
        # The first clause of a list has the words before the list in front of it.
        is_repeated = any(before == clause or before.endswith(f": {clause}") for before in clauses)
        if not is_repeated:
            clauses.append(clause)
    return "; ".join(clauses) + end


class SentenceError(Exception):
    """An error whose message goes to the console and into files: addresses in it are without their credentials.

    `field` is the full name of the field at fault, if there is one, and `fix` what makes it right, if that is known.
    `names` are a front end's, field -> what its user typed; the message has these.
    """

    def __init__(self, *parts: object, field: str = "", fix: Fix | None = None):
        super().__init__(*(without_credentials(part) if isinstance(part, str) else part for part in parts))
        self.field = field
        self.fix = fix
        self.names: Mapping[str, str] = {}
        self.after_step: int | None = None  # the last step of the run that it has ended

    def __str__(self) -> str:
        return worded(self._text(), self.names)

    def _text(self) -> str:
        return super().__str__()


@contextlib.contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Has the errors raised inside say a front end's names for fields; names of an inner `named` come first.

    >>> with named({"DataConfig.batch_size": "The number of rows"}):
    ...     raise ConfigError("DataConfig.batch_size", "is 0; give a number above 0.")
    Traceback (most recent call last):
    limba.config.errors.ConfigError: The number of rows is 0; give a number above 0.
    """
    try:
        yield
    except SentenceError as error:
        error.names = {**names, **error.names}
        raise


class InputError(SentenceError, ValueError):
    """An invalid input: one sentence that says what is wrong, where, and what to do.

    It is a ValueError too. A command prints it and ends with its exit status.

    >>> str(InputError("corpus.jsonl does not exist; give another path.")), InputError.exit_status
    ('corpus.jsonl does not exist; give another path.', 2)
    """

    exit_status = 2


class NoModelError(InputError):
    """There is no model at a path: one sentence that says what is there instead, and what to give."""


class ConfigError(InputError):
    """A field with an invalid value: the sentence goes on after its name. `give` says what its value must be.

    >>> error = ConfigError("DataConfig.batch_size", "is 0", give="a whole number above 0")
    >>> str(error), error.fix
    ('DataConfig.batch_size is 0; give a whole number above 0.', ('DataConfig.batch_size', …  # a whole number above 0))
    """

    def __init__(self, field: str, sentence: str, fix: Fix | None = None, give: str = ""):
        sentence = f"{sentence}; give {give}." if give else sentence
        super().__init__(field, sentence, field=field, fix=fix or (field, Open(give)))
        self.sentence = str(self.args[1])

    def _text(self) -> str:
        return f"{self.field} {self.sentence}"


class UntrustedModuleError(InputError):
    """A model's configuration names `modules` that may not be imported without the caller's word; `fact` says which."""

    def __init__(self, fact: str, modules: list[str]):
        super().__init__(fact, modules)
        self.fact = fact
        self.modules = modules

    def __str__(self) -> str:
        return f"{self.fact}; if you trust who wrote it, give imports={self.modules!r}."


class NonFiniteError(SentenceError, RuntimeError):
    """The loss or the gradient is not finite; the batch is written to a file, and no checkpoint is saved after it."""

    exit_status = 3


class StorageError(SentenceError, RuntimeError):
    """A directory or bucket cannot be written or read any more: one sentence that says what failed and what is safe."""

    exit_status = 74


class RestartError(SentenceError, RuntimeError):
    """The run cannot continue in this process, and the same command resumes it: one sentence that says why."""

    exit_status = 75


def reason_of(error: BaseException, limit: int = 200) -> str:
    """Returns the first line of an error's message, or its type if it has none; at most `limit` characters.

    >>> reason_of(OSError(2, "No such file or directory")), reason_of(KeyError()), reason_of(ValueError("bad.\\nBut"))
    ('No such file or directory', 'KeyError', 'bad')
    """
    text = without_credentials(getattr(error, "strerror", None) or str(error).strip().split("\n")[0])  # before the cut
    return text[:limit].rstrip(".") or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the memory of the host or of a device ran out; jax, whose error it is, may be absent.

    >>> is_out_of_memory(RuntimeError("can't start new thread")), is_out_of_memory(OSError(12, "no memory"))
    (True, True)
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":  # Python's sentence
        return True
    is_of_jax = type(error).__module__.startswith("jax")
    return is_of_jax and bool(re.search("RESOURCE_EXHAUSTED|[Oo]ut of memory", str(error)))


def largest_divisor(whole: int, most: int) -> int:
    """Returns the largest number up to `most` that divides another one.

    >>> largest_divisor(20, 3)
    2
    """
    return next(number for number in range(most, 0, -1) if whole % number == 0)


def require(condition: bool, field: str, sentence: str, fix: Fix | None = None, give: str = "") -> None:
    """Raises ConfigError unless the condition holds.

    >>> require(8 % 3 == 0, "DataConfig.batch_size", "is 8, which does not divide by 3; give a multiple.")
    Traceback (most recent call last):
    limba.config.errors.ConfigError: DataConfig.batch_size is 8, which does not divide by 3; give a multiple.
    """
    if not condition:
        raise ConfigError(field, sentence, fix, give)


def all_of(field: str, values: Iterable[str], choices: Iterable[str]) -> None:
    """Raises ConfigError for a field of several values if one of them is not among the choices."""
    for value in values:
        require(value in choices, field, f"holds {value!r}; choose from {', '.join(choices)}.")


def nearest(name: str, choices: Iterable[str]) -> str:
    """Returns the choice that is most similar, in letters of either case; "" if none is.

    >>> nearest("adamW", ["adafactor", "adamw"]), nearest("x", ["adamw"])
    ('adamw', '')
    """
    by_capitals = {choice.upper(): choice for choice in choices}
    close = difflib.get_close_matches(name.upper(), list(by_capitals), n=1, cutoff=0.6)
    return by_capitals[close[0]] if close else ""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns `; did you mean A?` if a choice is similar, else a full stop.

    >>> did_you_mean("outptu", ["input", "output"]), did_you_mean("x", ["input"])
    ('; did you mean output?', '.')
    """
    near = nearest(name, choices)
    return f"; did you mean {near}?" if near else "."

"""`limba results make-pairs`: minimal pairs of agreement from a treebank of Universal Dependencies."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.api import Parser
from limba.config import InputError, kinds
from limba.tools.results import files
from limba.tools.results.kinds import pairs
from limba.tools.results.kinds.pairs import Pair

ABOUT = """Writes minimal pairs from treebanks of Universal Dependencies, as MultiBLiMP makes them: a finite verb, or a
participle or an adjective that is a predicate, gets the form of another number, gender or person than its subject's.
The form is one of the same word that the treebank has elsewhere, with all other features alike.

    limba results make-pairs ro_rrt-ud-*.conllu --output=ro_pairs.tsv"""
FEATURES = {"Number": "number", "Gender": "gender", "Person": "person"}
PREDICATES = ("VERB", "AUX", "ADJ")
SUBJECTS = ("NOUN", "PROPN", "PRON")
Form = tuple[str, str]  # lemma and part of speech


class Token(NamedTuple):
    """A token of a tree."""

    number: str
    form: str
    lemma: str
    upos: str
    features: Mapping[str, str]
    head: str
    relation: str
    space_after: bool


def run(argv: Sequence[str]) -> None:
    """Writes the pairs of the treebanks that the flags name; raises InputError."""
    parser = Parser("results make-pairs", ABOUT)
    parser.add_object("treebank", "FILE", "files in CoNLL-U, .gz too", takes_several=True)
    parser.add_argument("--output", metavar="FILE", help="a TSV with the columns good, bad and phenomenon")
    parser.add_argument("--most", type=int, default=1000, help="pairs of each phenomenon; default: 1000")
    given = parser.parse(argv)
    if not given.treebank or given.output is None or given.most < 1:
        raise InputError("Write limba results make-pairs FILE.conllu --output=pairs.tsv, with --most=1 or more.")
    kinds.check_local(given.output, "--output")
    trees = [tree for name in given.treebank for tree in trees_of(files.place_of("", name))]
    found = made(trees, given.most)
    if not found:
        raise InputError(
            f"{given.treebank[0]} gives no pairs: its verbs have no Number, Gender or Person, or each form stands once;"
            " give the other parts of the treebank too."
        )
    pairs.write(Path(given.output).expanduser(), found)
    counts = collections.Counter(pair.phenomenon for pair in found)
    print("\n".join(f"{count:>6,}  {name}" for name, count in sorted(counts.items())))
    print(f"{len(found):>6,}  pairs of {len(trees):,} sentences: {given.output}")


def trees_of(path: Path) -> Iterator[list[Token]]:
    """Yields the sentences of a treebank whose tokens spell their text; InputError for another layout."""
    tree, text = list[Token](), ""
    for number, line in enumerate([*files.lines_of(path), ""], 1):
        if line.startswith("# text ="):
            text = line.partition("=")[2].strip()
        elif not line.strip():
            if tree and spelt(tree).strip() == text:
                yield tree
            tree, text = [], ""
        elif not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != 10:
                raise InputError(
                    f"{path} line {number} has {len(cells)} columns, and CoNLL-U has 10; name another file."
                )
            if cells[0].isdecimal():
                pairs_of = [each.partition("=") for each in cells[5].split("|") if "=" in each]
                features = {name: value for name, _, value in pairs_of}
                place, form, lemma, upos, _, _, head, relation, _, misc = cells
                tree.append(Token(place, form, lemma, upos, features, head, relation, "SpaceAfter=No" not in misc))


def spelt(tree: Sequence[Token], place: int = -1, form: str = "") -> str:
    """Returns the text of a tree, with another form at one place."""
    return "".join((form if i == place else each.form) + " " * each.space_after for i, each in enumerate(tree)).strip()


def made(trees: Sequence[Sequence[Token]], most: int) -> list[Pair]:
    """Returns the pairs of some trees, at most so many of each phenomenon."""
    forms: dict[Form, dict[str, list[Mapping[str, str]]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    analyses: dict[str, list[Mapping[str, str]]] = collections.defaultdict(list)
    for token in (token for tree in trees for token in tree):
        analyses[token.form.lower()].append(token.features)
        if token.upos in PREDICATES:
            forms[token.lemma, token.upos][token.form.lower()].append(token.features)
    found: dict[str, list[Pair]] = collections.defaultdict(list)
    for tree in trees:
        for subject, place in _agreements(tree):
            for feature, name in FEATURES.items():
                if other := _other_form(tree[place], subject, feature, forms, analyses):
                    form = other[:1].upper() + other[1:] if tree[place].form[:1].isupper() else other
                    kind = "verb" if "Person" in tree[place].features else "predicate"
                    if len(found[f"subject-{kind} {name}"]) < most:
                        pair = Pair(spelt(tree), spelt(tree, place, form), f"subject-{kind} {name}")
                        found[pair.phenomenon].append(pair)
    return [pair for name in sorted(found) for pair in dict.fromkeys(found[name])]


def _agreements(tree: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Yields (subject, place of a word that agrees with it): its predicate, and that one's auxiliaries and copula."""
    for subject in tree:
        joined = any(each.head == subject.number and each.relation.startswith("conj") for each in tree)
        if subject.relation.partition(":")[0] != "nsubj" or subject.upos not in SUBJECTS or joined:
            continue
        for place, each in enumerate(tree):
            is_predicate = each.number == subject.head
            is_beside = each.head == subject.head and each.relation.partition(":")[0] in ("aux", "cop")
            if (is_predicate or is_beside) and each.upos in PREDICATES:
                yield subject, place


def _other_form(
    token: Token,
    subject: Token,
    feature: str,
    forms: Mapping[Form, Mapping[str, Sequence[Mapping[str, str]]]],
    analyses: Mapping[str, Sequence[Mapping[str, str]]],
) -> str | None:
    """Returns a form of a word that differs in one feature and is wrong beside the subject; None if there is none.

    The subject must agree with the word as it stands. A form that also has the right value, and a subject that also has
    the wrong one, give no pair.
    """
    of_subject = {"Person": "3"} if feature == "Person" and subject.upos != "PRON" else {}
    value = token.features.get(feature)
    if value is None or {**of_subject, **subject.features}.get(feature) != value:
        return None
    rest = {name: each for name, each in token.features.items() if name != feature}
    for form, known in forms[token.lemma, token.upos].items():
        values = {each.get(feature) for each in known}
        alike = [each for each in known if {n: v for n, v in each.items() if n != feature} == rest]
        wrong = {each.get(feature) for each in alike} - {None, value}
        of_forms = {each.get(feature) for each in analyses[subject.form.lower()]}
        if wrong and not values & {value, None} and not wrong & of_forms and form != token.form.lower():
            return form
    return None

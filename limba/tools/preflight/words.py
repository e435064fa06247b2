"""Lines of a preflight in the words of its user: gin's names for fields, and commands for scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from limba.api import said
from limba.config import RunConfig
from limba.tools.preflight.checks.verdict import STEPS_ON_V4_8, Line, Section

# A mend of `limba/tools/preflight/checks/`, which names no command, -> the command.
COMMANDS = {
    "prepare the corpus": "limba prepare FILES --output=prepared/train  # then CORPUS = 'prepared/train/*'",
    "restore its files from a copy": "limba verify MODEL_DIR  # names the damaged files; restore them from a copy",
}
# Where a figure has been measured that a line quotes -> the command that measures it.
MEASURED_BY = {
    STEPS_ON_V4_8: "python -m benchmarks.compiled --size=base --topology=v4-8 --batch=128 --inputs=512 --targets=114"
    " --remat=minimal, without and with --no-scan",
}


def worded(section: Section, names: Mapping[str, str]) -> Section:
    """Returns the section with the names that its user typed; `names` are those of `GinRun`.

    >>> line = Line("warning", "ModelConfig.vocab_size is 9, DataConfig.seed is 1.", "DataConfig.seed = 0")
    >>> worded(Section("Data", [line]), {"ModelConfig.vocab_size": "VOCAB_SIZE"}).lines[0]
    Line(level='warning', text='VOCAB_SIZE is 9, DataConfig.seed is 1.', mend='config.DataConfig.seed = 0')
    """
    lines = [Line(line.level, said(sourced(line.text), names), mended(line.mend, names)) for line in section.lines]
    return Section(section.title, lines, section.data)


def at_start(config: RunConfig, names: Mapping[str, str]) -> list[str]:
    """Returns a line for each thing that the cheap half of a preflight finds wrong with a run that starts."""
    from limba.tools.preflight.checks.start import found_wrong

    section = worded(Section("", found_wrong(config)), names)
    return [f"{line.text} To mend it: {line.mend}" for line in section.lines]


def of_this_machine(pid: int | None) -> list[str]:
    """Returns what a preflight would say against the next start here of a run; `pid` is the process that trains it."""
    from limba.tools.preflight.checks.environment import wrong_for_a_start

    found = wrong_for_a_start(pid)
    return [f"{line.level:<12} {line.text} To mend it: {mended(line.mend, {})}" for line in found]


def sourced(text: str) -> str:
    """Returns a line with the command behind each figure that it quotes."""
    for place, command in MEASURED_BY.items():
        text = text.replace(place, command)
    return text


def mended(mend: str, names: Mapping[str, str]) -> str:
    """Returns a mend as a line for a gin file, or as a command.

    >>> mended("setup.sh tpu", {}), mended("DataConfig.batch_size = 8", {"DataConfig.batch_size": "BATCH_SIZE"})
    ('bash launch/setup.sh tpu', 'BATCH_SIZE = 8')
    """
    mend = re.sub(r"^setup\.sh\b", "bash launch/setup.sh", mend)
    for engine, command in COMMANDS.items():
        if mend.startswith(engine):
            return command
    return re.sub(r"(?<![\w.])(?=\w+Config\.\w+ = )", "config.", said(mend, names))

"""What a run says and writes of itself before its first step."""

from collections.abc import Mapping

from limba.config import RunConfig
from limba.data import run_data
from limba.training.metrics.figures import details, facts, introduction
from limba.training.metrics.logging import Metrics
from limba.training.start import Plan, write_config
from limba.training.state import TrainState, count_parameters


def introduce(
    metrics: Metrics,
    config: RunConfig,
    gin_text: str,
    plan: Plan,
    lengths: Mapping[str, int],
    abstract: TrainState,
    start: int,
    num_devices: int,
) -> None:
    """Writes model_dir's config.json and config.gin, and says what the run is: on the console, in its log and records.

    `abstract` is the state without arrays, `start` the step that the run begins at.
    """
    num_parameters = count_parameters(abstract.params)
    if metrics.writes:
        write_config(config, gin_text, [stage.task for stage in plan.stages])
        truncation = run_data.truncation(plan.stages[0].task, lengths, config.data)
        for sentence, is_any_cut in truncation.items():
            if is_any_cut:
                metrics.say(sentence)
            else:
                metrics.detail(sentence)
    for sentence in (*plan.notes, *introduction(plan.planned, num_parameters, start)):
        metrics.say(sentence)
    for line in details(plan.planned, lengths, start):
        metrics.detail(line)
    metrics.record("start", start, facts(config, num_parameters, lengths, num_devices))

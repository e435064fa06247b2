"""Choices that a run does not read, since another choice decides: an override of one asks for what cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from limba.config import ModelConfig, RunConfig, ScheduleConfig
from limba.config.model import fields_of_other_positions
from limba.config.schedule import READ_BY_FACTORS, unread_fields

DEFAULTS = {"config.ModelConfig": ModelConfig, "config.ScheduleConfig": ScheduleConfig}


def unread_choices(owner: str, bound: Mapping[str, object], config: RunConfig, flag: str) -> dict[str, str]:
    """Returns each given field of a class that the run does not read -> the end of a sentence on it.

    `owner` is the class as gin files name it, and `flag` what precedes a name on the command line. A field with
    its default asks for nothing.
    """
    if owner not in DEFAULTS:
        return {}
    if owner == "config.ModelConfig":
        reasons = _unread_of_model(config.model)
    else:
        reasons = _unread_of_schedule(bound, config.optimizer.schedule, f"{flag}{owner}")
    unread = {}
    for name, reason in reasons.items():
        if name in bound and bound[name] != getattr(DEFAULTS[owner], name):
            unread[name] = reason
    return unread


def _unread_of_model(model: ModelConfig) -> dict[str, str]:
    reason = f"a network with {model.positions} positions does not read; leave it out."
    reasons = dict.fromkeys(fields_of_other_positions(model.positions), reason)
    if not (model.is_encoder or model.is_decoder_only):
        reasons["max_length"] = "a T5 does not read, since its positions are relative; leave it out."
    return reasons


def _unread_of_schedule(bound: Mapping[str, object], schedule: ScheduleConfig, flag: str) -> dict[str, str]:
    reasons = {name: _not_in_schedule(name, schedule, flag) for name in unread_fields(bound)}
    if bound.get("warmup_steps") == 0:  # asks for no warm-up, which a schedule without one gives
        reasons.pop("warmup_steps", None)
    if schedule.branch_step is None:
        reasons["branch_shape"] = f"only a branch reads; leave it out, or give {flag}.branch_step and branch_steps too."
    return reasons


def _not_in_schedule(name: str, schedule: ScheduleConfig, flag: str) -> str:
    """Returns the end of a sentence on a field that a schedule does not read: which one, and what to do."""
    if schedule.name != "factors":
        return f"the schedule {schedule.name!r} does not read; leave it out, or add {flag}.name=factors."
    readers = [factor for factor, fields in READ_BY_FACTORS.items() if name in fields]
    if not readers:
        return f"the schedule 'factors' does not read; leave it out, or add {flag}.name=linear or another one."
    return (
        f"the factors {schedule.factors!r} of the learning rate do not read; leave it out, or give {flag}.factors with"
        f" one that does: {', '.join(readers)}."
    )

"""The dtype of a script's run, from the five keys that may give it."""

from __future__ import annotations

from typing import Any

from limba.config import InputError

NAMES = {
    "no": "float32", "fp32": "float32", "float32": "float32", "auto": "float32",
    "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16",
}  # fmt: skip
LEAST_CAPABILITY = 8.0  # of an NVIDIA card with bfloat16: the A100 and later


def dtype_of(translation: Any) -> tuple[str, str]:
    """Returns the dtype of the activations and what it comes from; InputError for keys that disagree.

    float16 becomes bfloat16 where the device has it: as fast, and nothing overflows.
    """
    claims: dict[str, str] = {}  # key -> dtype
    for key in ("mixed_precision", "dtype", "torch_dtype"):
        value = translation.values.get(key)
        if value is None:
            continue
        if value not in NAMES:
            raise InputError(f"{translation.place} gives {key} {value!r}; give no, bf16, fp16 or float32.")
        claims[key] = NAMES[value]
    for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if translation.values.get(key):
            claims[key] = dtype
    if len(set(claims.values())) > 1:
        first, *others = claims
        other = next(key for key in others if claims[key] != claims[first])
        raise InputError(
            f"{translation.place} gives {first} {translation.values[first]!r} and {other}"
            f" {translation.values[other]!r}, which are {claims[first]} and {claims[other]}; leave one out."
        )
    if not claims:
        return "float32", "mixed_precision"
    key, dtype = next(iter(claims.items()))
    if dtype != "float16":
        return dtype, key
    name = lacks_bfloat16()
    if name:
        translation.notes.append(f"{key}: {name} has no bfloat16, so float16 with dynamic loss scaling.")
        return "float16", key
    translation.notes.append(f"{key}: this device has bfloat16, which is as fast as float16 and does not overflow.")
    return "bfloat16", key


def lacks_bfloat16() -> str:
    """Returns the name of this process's device if it computes in float16 and not in bfloat16, else an empty text."""
    import jax

    from limba.model.kernels.choose import compute_capability

    device = jax.devices()[0]
    capability = compute_capability(device)
    return device.device_kind if 0 < capability < LEAST_CAPABILITY else ""

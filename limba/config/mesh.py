"""The device mesh."""

from __future__ import annotations

from dataclasses import dataclass

from limba.config import kinds
from limba.config.errors import require
from limba.config.kinds import PositiveInt


@dataclass(frozen=True)
class MeshConfig:
    """The sizes of the device mesh's axes. -1 for `data` means all devices that the other two leave.

    >>> MeshConfig(fsdp=2).sizes(8)
    (4, 2, 1)
    """

    data: int = -1  # groups of devices with their own rows; -1: all that are left
    fsdp: PositiveInt = 1  # devices that share parameters, and have their own rows
    model: PositiveInt = 1  # devices that share each matrix product
    shard_update: bool = True  # pure data parallelism: shard optimizer state and update across devices (ZeRO-style)
    auto: bool = False  # the smallest fsdp, then model, whose compiled step fits the devices' memory
    memory_gib: float | None = None  # memory per device, for auto; None: 95 % of the limit that the devices report

    def __post_init__(self) -> None:
        kinds.check(self)
        require(
            not self.auto or (self.data, self.fsdp, self.model) == (-1, 1, 1),
            "MeshConfig.auto",
            f"chooses the sizes, and MeshConfig.data is {self.data}, MeshConfig.fsdp {self.fsdp} and MeshConfig.model"
            f" {self.model}; remove these, or set MeshConfig.auto to False.",
            ("MeshConfig.auto", False),
        )
        require(
            self.memory_gib is None or (self.auto and self.memory_gib > 0),
            "MeshConfig.memory_gib",
            f"is {self.memory_gib!r}; give a number above 0, and set MeshConfig.auto, which it is for.",
        )
        require(
            self.data == -1 or self.data > 0,
            "MeshConfig.data",
            f"is {self.data!r}; give a whole number above 0, or -1 for all devices that the other axes leave.",
        )

    def sizes(self, num_devices: int) -> tuple[int, int, int]:
        """Returns (data, fsdp, model) for this number of devices; ConfigError if they do not divide."""
        rest = self.fsdp * self.model
        data = num_devices // rest if self.data == -1 else self.data
        require(
            data * rest == num_devices,
            "MeshConfig.data",
            f"is {self.data}, which with MeshConfig.fsdp {self.fsdp} and MeshConfig.model {self.model} does not fit"
            f" {num_devices} devices; give sizes whose product is the number of devices.",
        )
        return data, self.fsdp, self.model

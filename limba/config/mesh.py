"""The device mesh."""

from __future__ import annotations

from dataclasses import dataclass

from limba.config.errors import positive, require


@dataclass(frozen=True)
class MeshConfig:
    """Sizes of the device mesh's axes. -1 on `data` takes the devices that the other two leave."""

    data: int = -1
    fsdp: int = 1
    model: int = 1
    shard_update: bool = True  # where data is all there is, each device keeps and updates a share of the parameters
    auto: bool = False  # fsdp, then model: the smallest that fit the devices' memory by the compiler's account
    memory_gib: float | None = None  # of a device, for auto; None: 95 % of what the devices tell

    def __post_init__(self) -> None:
        positive(self, "fsdp", "model")
        require(
            not self.auto or (self.data, self.fsdp, self.model) == (-1, 1, 1),
            "MeshConfig.auto",
            f"chooses the sizes, and data {self.data}, fsdp {self.fsdp}, model {self.model} are given;"
            " leave one of both out.",
        )
        require(
            self.memory_gib is None or (self.auto and self.memory_gib > 0),
            "MeshConfig.memory_gib",
            f"is {self.memory_gib!r}; give a number above 0, and set auto, which it is for.",
        )
        require(
            self.data == -1 or self.data > 0,
            "MeshConfig.data",
            f"is {self.data!r}; give a whole number above 0, or -1 for all devices that are left.",
        )

    def sizes(self, num_devices: int) -> tuple[int, int, int]:
        """Returns (data, fsdp, model) for that many devices; ConfigError where they do not divide."""
        rest = self.fsdp * self.model
        data = num_devices // rest if self.data == -1 else self.data
        require(
            data * rest == num_devices,
            "MeshConfig.data",
            f"{self.data} x fsdp {self.fsdp} x model {self.model} does not fit {num_devices} devices; "
            "change MeshConfig so that the product equals the number of devices.",
        )
        return data, self.fsdp, self.model

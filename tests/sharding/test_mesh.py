"""Which device stands where in the mesh, when the devices are in several slices or nodes."""

from dataclasses import dataclass

import jax
import pytest
from jax._src import sharding_impls

from limba.config import MeshConfig
from limba.sharding import mesh
from limba.sharding.mesh import across_slices


@dataclass(frozen=True)
class Device:
    """What jax reads of a device to arrange it."""

    id: int
    slice_index: int
    process_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0


def gpus(nodes: int, per_node: int) -> list[Device]:
    return [Device(number, number // per_node, number) for number in range(nodes * per_node)]


def tpus(slices: int) -> list[Device]:
    """v4 slices of 2 x 2 x 1 chips, each chip with the same coordinates in every slice."""
    return [
        Device(4 * number + chip, number, number, "tpu", "TPU v4", (chip % 2, chip // 2, 0))
        for number in range(slices)
        for chip in range(4)
    ]


@pytest.mark.parametrize("devices", [gpus(2, 4), tpus(2)], ids=["nodes", "slices"])
@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 4, 1), (2, 1, 4), (4, 2, 1), (2, 2, 2)])
def test_only_the_axis_data_crosses_slices(sizes: tuple[int, int, int], devices: list[Device]) -> None:
    arranged = across_slices(sizes, devices)
    assert arranged.shape == sizes and sorted(device.id for device in arranged.flat) == list(range(8))
    for row in arranged:
        assert len({device.slice_index for device in row.flat}) == 1
    halves = [
        {device.slice_index for device in half.flat} for half in (arranged[: sizes[0] // 2], arranged[sizes[0] // 2 :])
    ]
    assert halves == [{0}, {1}]


def test_other_axes_cross_slices_where_they_must() -> None:
    by_fsdp = across_slices((1, 8, 1), gpus(2, 4))
    assert [device.slice_index for device in by_fsdp[0, :, 0]] == [0] * 4 + [1] * 4
    odd = across_slices((1, 4, 3), gpus(6, 2))  # 2 of the 6 nodes by fsdp, 3 by model
    assert sorted(device.id for device in odd.flat) == list(range(12))
    uneven = across_slices((1, 1, 6), [*gpus(4, 1), Device(4, 4, 4), Device(5, 4, 4)])  # 5 nodes do not divide 6
    assert [device.id for device in uneven.flat] == list(range(6))


def test_jax_s_own_mesh_refuses_several_nodes_and_ours_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on two nodes of GPUs; jax 0.10 and later number them as slices."""
    devices = gpus(2, 4)
    monkeypatch.setattr(sharding_impls.xb, "devices", lambda: devices)
    with pytest.raises(ValueError, match="multi-slice"):
        jax.make_mesh((8, 1, 1), ("data", "fsdp", "model"))
    monkeypatch.setattr(mesh.jax, "devices", lambda: devices)
    monkeypatch.setattr(mesh.jax, "device_count", lambda: 8)
    monkeypatch.setattr(mesh, "Mesh", lambda devices, names, axis_types: dict(zip(names, devices.shape, strict=True)))
    assert mesh.make_mesh(MeshConfig()) == {"data": 8, "fsdp": 1, "model": 1}

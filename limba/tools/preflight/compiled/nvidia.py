"""NVIDIA cards as compilation targets: their descriptions for XLA, and statistics of the compiled kernels."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limba.config import InputError

# The command that installs the compiler.
SETUP = "bash ./launch/setup.sh cuda12"
INSTALL = f"install it, without a card, with: {SETUP}"
# Matrix products go to cuBLAS as they are: which program is fastest could only be found out on a card.
FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
# XLA's description of a card as a protocol buffer in text form; what all these cards have in common is written out.
DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {threads}
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {shared} shared_memory_per_core: {shared_in_all}
  core_count: {card.multiprocessors} fpus_per_core: {fpus} clock_rate_ghz: {card.clock_ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bytes_per_second} l2_cache_size: {l2} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{card.name}"
"""


class Card(NamedTuple):
    """XLA's description of a card, from NVIDIA's data sheets and the CUDA C++ programming guide."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    clock_ghz: float
    memory_gb: float
    gb_per_second: int
    l2_mb: int
    shared_kib: int  # that a program can have, of 1 KiB more


CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41, 85.0, 2039, 40, 163),
    "rtx3090": Card("NVIDIA GeForce RTX 3090", (8, 6), 82, 1.70, 25.3, 936, 6, 99),
    "l4": Card("NVIDIA L4", (8, 9), 58, 2.04, 24.0, 300, 48, 99),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52, 25.3, 1008, 72, 99),
    "h100": Card("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.98, 85.0, 3350, 50, 227),
    "h200": Card("NVIDIA H200", (9, 0), 132, 1.98, 150.1, 4800, 50, 227),
    "b200": Card("NVIDIA B200", (10, 0), 148, 1.97, 191.0, 8000, 126, 227),
    "rtx5090": Card("NVIDIA GeForce RTX 5090", (12, 0), 170, 2.41, 33.6, 1792, 96, 99),
}
# For which `limba preflight` compiles a step. An H200 held what its compiler had said; of the others nothing was run.
JUDGED = ("a100", "h100", "h200")
# Threads of a multiprocessor, and float32 units, by the CUDA C++ programming guide: of the large cards, and of others.
SERVER_CARDS = ((8, 0), (9, 0), (10, 0))


def _toolkit() -> Path:
    """Returns the folder of NVIDIA's compiler, which jax's CUDA wheels bring; InputError without them."""
    wheels = importlib.util.find_spec("nvidia")
    folders = [] if wheels is None else wheels.submodule_search_locations or []
    for folder in folders:
        for library in Path(folder).glob("*/nvvm/libdevice"):
            return library.parents[1]
    raise InputError(f"No compiler for NVIDIA's cards here; {INSTALL}", fix=SETUP)


def check_installed(name: str) -> None:
    """Raises InputError if jax's packages for NVIDIA's cards, or NVIDIA's compiler, are not installed."""
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise InputError(f"No compiler for {name}; {INSTALL}", fix=SETUP)
    _toolkit()


def _topology_text(number: int) -> str:
    """Returns a topology as XLA names it: slices x hosts x cards of a host, which are at most 8."""
    return f"1x{number // 8}x8" if number > 8 else f"1x1x{number}"


def topology_devices(name: str, dump: str) -> np.ndarray:
    """Returns devices that can be compiled for; what becomes of each kernel is written to the folder `dump`."""
    card_name, number = name.split("-")
    card = CARDS[card_name]
    toolkit = _toolkit()
    flags = f"{FLAGS} --xla_gpu_cuda_data_dir={toolkit} --xla_dump_to={dump}"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    from jax.experimental import topologies

    text = DESCRIPTION.format(
        card=card,
        shared=card.shared_kib << 10,
        shared_in_all=(card.shared_kib + 1) << 10,
        major=card.compute_capability[0],
        minor=card.compute_capability[1],
        threads=2048 if card.compute_capability in SERVER_CARDS else 1536,
        fpus=64 if card.compute_capability == (8, 0) else 128,
        bytes_per_second=card.gb_per_second * 10**9,
        l2=card.l2_mb << 20,
        memory=int(card.memory_gb * 1e9),
    )
    try:
        description = topologies.get_topology_desc(
            platform="cuda", topology_name=card_name, target_config=text, topology=_topology_text(int(number))
        )
    except Exception as error:  # without its plugin jax knows no such platform, and says so in several ways
        raise InputError(f"No compiler for {name} ({str(error)[:200]}); {INSTALL}", fix=SETUP) from error
    return np.array(description.devices)


def kernels(calls: dict[str, int], dump: str) -> dict[str, dict[str, object]]:
    """Returns {kernel: its calls a step, registers a thread, bytes a thread that they could not hold, KiB of shared
    memory, tensor cores' instructions}, from the compiled programs and the output of ptxas."""
    shared = {}
    for path in Path(dump).glob("*thunk_sequence.txt"):
        for name, size in re.findall(r" (\w+) grid:.*shared_memory: (\d+)", path.read_text()):
            shared[name] = int(size) / 1024
    figures = {}
    for path in Path(dump).glob("*.ptx"):
        text = path.read_text()
        name = re.search(r"\.entry (\w+)", text)
        if not name or name[1] not in calls:
            continue
        target = re.findall(r"\.target (\w+)", text)[0]
        command = [str(_toolkit() / "bin" / "ptxas"), "-v", f"-arch={target}", str(path), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        products = re.findall(
            r"\b(wgmma|mma)(?:\.mma_async)?\.sync\.aligned\.(\w+)\.(?:row\.col\.)?(f32\.\w+\.\w+)", text
        )
        products += re.findall(r"\b(tcgen05)\.mma\.(cta_group::\d)\.(kind::\w+)", text)  # of compute capability 10
        figures[name[1]] = {
            "calls": calls[name[1]],
            "registers": int(re.findall(r"Used (\d+) registers", done.stderr)[0]),
            "spilled_bytes": int(re.findall(r"(\d+) bytes spill stores", done.stderr)[0]),
            "shared_kib": shared.get(name[1], 0.0),
            "products": sorted({" ".join(parts) for parts in products}),
        }
    return figures

"""Devices and networks that can be bought, by their data sheets."""

from __future__ import annotations

from dataclasses import replace

from course_lib.sim.core.hardware import GIB, Link
from course_lib.sim.llm.hardware.device import Device

# NCCL's own tests report about these fractions of the bandwidths of NVLink and InfiniBand; the latencies are assumed, too.
_NVLINK_EFFICIENCY, _INFINIBAND_EFFICIENCY, _LINK_LATENCY_SECONDS = 0.78, 0.9, 10e-6
# Ethernet spends some more bytes on headers, and more of its time on congestion (Gangidi et al., 2024, "RDMA over Ethernet for
# distributed AI training at Meta scale"); how much is assumed.
NETWORK_EFFICIENCIES = {"infiniband": _INFINIBAND_EFFICIENCY, "roce": 0.85}


def _links(inside: float, network: float) -> dict[str, Link]:
    return dict(
        inside=Link(inside, _NVLINK_EFFICIENCY, _LINK_LATENCY_SECONDS),
        network=Link(network, _INFINIBAND_EFFICIENCY, _LINK_LATENCY_SECONDS),
    )


# Data sheets: NVIDIA A100, H100, H200 and B200 in SXM form, GB200 NVL72; AMD Instinct MI300X. Rates are dense, links one way. Networks: a
# port per device, HDR (200 Gbit/s) for the A100, NDR (400 Gbit/s) for the others. `matrix` of the A100 and of the H100 is fitted, see
# `measured.rows`. The H200 has the H100's processors; for the others, the H100's fraction is assumed.
A100_DEVICE = Device("A100 80 GB", 312e12, 108, 2039e9, 80 * GIB, matrix=0.907, **_links(300e9, 25e9))
H100_DEVICE = Device("H100 80 GB", 989e12, 132, 3352e9, 80 * GIB, matrix=0.730, flops8=1979e12, **_links(450e9, 50e9))
_OF_H100 = dict(matrix=H100_DEVICE.matrix)
B200_DEVICE = Device("B200 180 GB", 2250e12, 148, 7700e9, 180 * GIB, flops8=4500e12, **_OF_H100, **_links(900e9, 50e9))
DEVICE_PRESETS = {
    "a100": A100_DEVICE,
    "a100-40": replace(A100_DEVICE, name="A100 40 GB", memory=40 * GIB, memory_bandwidth=1555e9),
    "h100": H100_DEVICE,
    "h200": replace(H100_DEVICE, name="H200 141 GB", memory=141 * GIB, memory_bandwidth=4800e9),
    "b200": B200_DEVICE,
    "gb200": replace(B200_DEVICE, name="GB200 186 GB", flops=2500e12, flops8=5000e12, memory=186 * GIB, memory_bandwidth=8000e9, node=72),
    "mi300x": Device("MI300X 192 GB", 1307e12, 304, 5300e9, 192 * GIB, flops8=2615e12, **_OF_H100, **_links(448e9, 50e9)),
}

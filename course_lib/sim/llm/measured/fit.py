"""The number that is fitted, and what the errors owe to each assumption and to each effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.cluster import A100_DEVICE, H100_DEVICE
from course_lib.sim.llm.measured.comparison import Comparison, times
from course_lib.sim.llm.measured.rows import GRATTAFIORI, MEASURED, NARAYANAN, NARAYANAN_2, Measured

DEVICES = (A100_DEVICE, H100_DEVICE)
Change = Callable[[Measured], Measured]


def fit(rows: Sequence[Measured]) -> float:
    """`Device.matrix` for which the errors of the fitted rows add up to zero."""
    fitted = [row for row in rows if row.fitted]
    small, large = 0.3, 1.0
    while large - small > 1e-5:
        matrix = (small + large) / 2
        found = times([replace(row, device=replace(row.device, matrix=matrix)) for row in fitted])
        if sum(row.error for row in found) > 0:
            small = matrix
        else:
            large = matrix
    return (small + large) / 2


def fitted_anew(change: Change, rows: Sequence[Measured] | None = None) -> list[Comparison]:
    """Compare after changing each row, with `Device.matrix` fitted again; by closed forms, which are fast and close enough."""
    found = []
    changed = [change(row) for row in (MEASURED if rows is None else rows)]
    for name in dict.fromkeys(row.device.name for row in changed):
        some = [row for row in changed if row.device.name == name]
        matrix = fit(some)
        found += times([replace(row, device=replace(row.device, matrix=matrix)) for row in some], closed=True)
    return found


def of_device(**changes: float | Link) -> Change:
    """Change fields of the devices."""
    return lambda row: replace(row, device=replace(row.device, **changes))


def of_place(**changes: float | Link) -> Change:
    """Change what is known of the clusters."""
    return lambda row: replace(row, place=row.place | changes)


def of_software(**changes: float | bool | str) -> Change:
    """Change the programs."""
    return lambda row: replace(row, software=replace(row.software, **changes))


def _scaled(name: str, by: float) -> Change:
    return lambda row: replace(row, device=replace(row.device, **{name: getattr(row.device, name) * by}))


def _links(which: tuple[str, ...], **changes: float) -> Change:
    """Change links; a bandwidth given is a factor."""

    def link(old: Link) -> Link:
        return replace(old, **{name: old.efficiency * value if name == "efficiency" else value for name, value in changes.items()})

    def change(row: Measured) -> Measured:
        place = row.place | ({"network": link(row.place["network"])} if "network" in which and "network" in row.place else {})
        return replace(row, place=place, device=replace(row.device, **{name: link(getattr(row.device, name)) for name in which}))

    return change


ASSUMED: dict[str, Change] = {
    **{
        f"{name} a tenth {way}": _scaled(name, by)
        for name in ("stream", "small_tile", "fused")
        for way, by in (("less", 0.9), ("more", 1.1))
    },
    "fill halved": of_device(fill=64),
    "fill doubled": of_device(fill=256),
    "launch doubled": _scaled("launch", 2.0),
    "NVLink a tenth less": _links(("inside",), efficiency=0.9),
    "NVLink a tenth more": _links(("inside",), efficiency=1.1),
    "network a tenth less": _links(("network",), efficiency=0.9),
    "latencies halved": _links(("inside", "network"), latency=5e-6),
    "latencies doubled": _links(("inside", "network"), latency=2e-5),
    "overhead 0.02 s": of_place(overhead=0.02),
    "overhead 0.08 s": of_place(overhead=0.08),
    "spread 0.5 %": of_place(spread=0.005),
    "spread 1.5 %": of_place(spread=0.015),
    "hidden_forward halved": lambda row: of_software(hidden_forward=row.software.hidden_forward / 2)(row),
}
EFFECTS: dict[str, Change] = {
    "(nothing left out)": lambda row: row,
    "tiles that fill and drain": of_device(fill=0),
    "gaps between operations": of_device(launch=0.0),
    "small tiles that read more": of_device(small_tile=1.0),
    "the slowest of many devices": of_place(spread=0.0),
    "time outside the layers": of_place(overhead=0.0),
    "tensor parallel exchanges not hidden": of_software(hidden_forward=1.0, hidden_backward=1.0),
    "gradients added apart, norms read twice": of_software(fused_accumulation=True, fused_norms=True),
    "gradients travel at the end": of_software(gradients="layer"),
    "messages that their sender waits for": of_software(hidden_messages=True),
    "the loss in many operations": of_software(fused_loss=True),
    "latency of links": _links(("inside", "network"), latency=0.0),
}


def sensitivity(rows: Sequence[Measured] | None = None) -> Iterator[tuple[str, list[Comparison]]]:
    """Compare after changing each assumed value."""
    for name, change in ASSUMED.items():
        yield name, fitted_anew(change, rows)


def effects(rows: Sequence[Measured] | None = None) -> Iterator[tuple[str, list[Comparison]]]:
    """Compare without each effect."""
    for name, change in EFFECTS.items():
        yield name, fitted_anew(change, rows)


def openings() -> Iterator[tuple[str, list[Comparison]]]:
    """Compare rows with other values of settings that their papers do not state.

    Yields
    ------
    str, list of Comparison
        The row and the setting, and a comparison for each value.
    """
    for row in MEASURED:
        c = row.configuration
        if row.source == NARAYANAN:
            sizes = [n for n in (1, 2, 4, 8, 16) if row.model.batch % (c.data * n) == 0]
            if c.interleave > 1:
                sizes = [n for n in sizes if row.model.batch // (c.data * n) % c.pipeline == 0]
            found = times([replace(row, name=f"{n}", configuration=replace(c, micro_batch=n)) for n in sizes])
            yield f"{row.name}: micro-batches of {', '.join(map(str, sizes))} (taken: {c.micro_batch})", found
        if row.source == NARAYANAN_2:
            some = [n for n in (1, 2, 3, 4, 8) if row.model.layers % (c.pipeline * n) == 0]
            found = times([replace(row, configuration=replace(c, interleave=n)) for n in some])
            yield f"{row.name}: {', '.join(map(str, some))} chunks (taken: {c.interleave})", found
        if row.source == GRATTAFIORI:
            whole = replace(row.model, fused=False).flop() / row.model.flop()
            yield f"{row.name}: FLOP with all scores, masked or not", times([replace(row, seconds=row.seconds * whole)])
            some = [replace(row, configuration=replace(c, interleave=n)) for n in (4, 8)]
            yield f"{row.name}: 4 or 8 chunks (taken: 8)", times(some)

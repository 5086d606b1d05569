"""Former names of modules, which functions saved with earlier versions of the course, and old hand-ins, still import.

A module is loaded under its former name only when it is imported under that name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType

FORMER_MODULES = {
    "course_lib.autograd.blocks": "course_lib.autograd.block_attention",
    "course_lib.autograd.sequences": "course_lib.autograd.functional",
    "course_lib.check.adam": "course_lib.check.zero.adam",
    "course_lib.check.context": "course_lib.check.attention.ring_attention",
    "course_lib.check.flat_shard": "course_lib.check.fsdp.flat_shard",
    "course_lib.check.optimizer": "course_lib.check.data.optimizer",
    "course_lib.check.perceptron": "course_lib.check.data.perceptron",
    "course_lib.check.ring": "course_lib.check.attention.kernels",
    "course_lib.check.sequence_parallel": "course_lib.check.tensor.sequence_parallel",
    "course_lib.check.tensor_parallel": "course_lib.check.tensor.tensor_parallel",
    "course_lib.check.wrapper": "course_lib.check.data.ddp",
    "course_lib.gpt.account": "course_lib.gpt.training.step_costs",
    "course_lib.gpt.assemble": "course_lib.gpt.model.build_model",
    "course_lib.gpt.block": "course_lib.gpt.model.block",
    "course_lib.gpt.experts": "course_lib.gpt.model.experts",
    "course_lib.gpt.flat": "course_lib.gpt.fsdp.flat_buffer",
    "course_lib.gpt.sample": "course_lib.gpt.generate",
    "course_lib.gpt.stage": "course_lib.gpt.model.stage",
    "course_lib.gpt.survey": "course_lib.gpt.fsdp.profile",
    "course_lib.gpt.trainer": "course_lib.gpt.training.trainer",
    "course_lib.gpt.units": "course_lib.gpt.fsdp.wrapping",
    "course_lib.host": "course_lib.utils.host",
    "course_lib.images": "course_lib.datasets.images",
    "course_lib.interrupts": "course_lib.utils.interrupts",
    "course_lib.plots.context": "course_lib.plots.attention",
    "course_lib.progress": "course_lib.utils.progress",
    "course_lib.resnet": "course_lib.training.resnet",
    "course_lib.sim.checks": "course_lib.sim.schedule.check",
    "course_lib.sim.llm.closed": "course_lib.sim.llm.analytic",
    "course_lib.sim.llm.layer": "course_lib.sim.llm.costs.layer",
    "course_lib.sim.llm.published": "course_lib.sim.llm.reference_data",
    "course_lib.sim.llm.schedule": "course_lib.sim.llm.costs.schedule",
    "course_lib.sim.llm.stage_costs": "course_lib.sim.llm.costs.stage",
    "course_lib.sim.orders": "course_lib.sim.schedule.schedules",
    "course_lib.sim.plan.checks": "course_lib.sim.plan.check",
    "course_lib.sim.score": "course_lib.sim.schedule.score",
    "course_lib.sim.stats": "course_lib.sim.schedule.stats",
    "course_lib.wording": "course_lib.utils.wording",
}


FORMER_SYMBOLS = {  # former names within these modules that students' own code has used
    "course_lib.gpt.block": {"alone": "no_communication"},
    "course_lib.gpt.flat": {"Flat": "FlatBuffer"},
    "course_lib.gpt.units": {"Tell": "PrintHooks"},
}


def load_on_use(package: str, **modules: str) -> Callable[[str], object]:
    """Return a package's `__getattr__` (PEP 562) for names that notebooks once imported from the package itself.

    Their modules are loaded on first use: a rank imports its own side of a check, and must not load the notebook's.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return load


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader of `FORMER_MODULES`."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None):
        return importlib.machinery.ModuleSpec(name, self) if name in FORMER_MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None  # the default module, which `exec_module` replaces

    def get_code(self, name: str) -> CodeType:
        """Return the code that ``python -m`` runs under a former name."""
        return importlib.util.find_spec(FORMER_MODULES[name]).loader.get_code(FORMER_MODULES[name])

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = today = importlib.import_module(FORMER_MODULES[module.__name__])
        for former, symbol in FORMER_SYMBOLS.get(module.__name__, {}).items():
            setattr(today, former, getattr(today, symbol))


def install() -> None:
    """Make Python look here for modules that it does not find."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())

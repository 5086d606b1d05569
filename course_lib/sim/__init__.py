"""Simulation of a training step of a large model on many devices: the loop is real, time and memory are computed."""

from course_lib.sim.calibrate import BlockCost, calibrate
from course_lib.sim.core.batches import get_global_batch_list, get_next_microbatch
from course_lib.sim.core.dist import Dist
from course_lib.sim.core.errors import Deadlock, MissingValue, OutOfMemory, SimulationError
from course_lib.sim.core.hardware import A100, FREE_COMMUNICATION, H100, LAYER, Hardware, Layer, Link
from course_lib.sim.core.model import Model
from course_lib.sim.core.values import Activation, ActivationGrad, OptState, Weight, WeightGrad
from course_lib.sim.schedule.compare_measured import compare_with_simulation
from course_lib.sim.schedule.simulation import Result, run
from course_lib.sim.schedule.stats import get_model_theoretical_best_time, get_training_stats
from course_lib.sim.schedule.trace import write_chrome_trace

__all__ = [
    "A100",
    "FREE_COMMUNICATION",
    "H100",
    "LAYER",
    "Activation",
    "ActivationGrad",
    "BlockCost",
    "Deadlock",
    "Dist",
    "Hardware",
    "Layer",
    "Link",
    "MissingValue",
    "Model",
    "OptState",
    "OutOfMemory",
    "Result",
    "SimulationError",
    "Weight",
    "WeightGrad",
    "calibrate",
    "compare_with_simulation",
    "get_global_batch_list",
    "get_model_theoretical_best_time",
    "get_next_microbatch",
    "get_training_stats",
    "run",
    "write_chrome_trace",
]

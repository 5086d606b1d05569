"""One training step of a large model on many devices, simulated: the loop is real, time and memory are counted."""

from course_lib.sim.batches import get_global_batch_list, get_next_microbatch
from course_lib.sim.calibrate import BlockCost, calibrate
from course_lib.sim.dist import Dist
from course_lib.sim.errors import Deadlock, MissingValue, OutOfMemory, SimulationError
from course_lib.sim.hardware import A100, FREE_COMMUNICATION, H100, LAYER, Hardware, Layer, Link
from course_lib.sim.measured import beside
from course_lib.sim.model import Model
from course_lib.sim.simulation import Result, run
from course_lib.sim.stats import get_model_theoretical_best_time, get_training_stats
from course_lib.sim.trace import write_chrome_trace
from course_lib.sim.values import Activation, ActivationGrad, OptState, Weight, WeightGrad

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
    "beside",
    "calibrate",
    "get_global_batch_list",
    "get_model_theoretical_best_time",
    "get_next_microbatch",
    "get_training_stats",
    "run",
    "write_chrome_trace",
]

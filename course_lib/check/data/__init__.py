"""Checks of the perceptron, data parallel training and its optimizer (parts 12, 14 and 15)."""

from course_lib.check.data.ddp import DdpCheck
from course_lib.check.data.optimizer import OptimizerCheck
from course_lib.check.data.perceptron import PerceptronCheck

__all__ = ["DdpCheck", "OptimizerCheck", "PerceptronCheck"]

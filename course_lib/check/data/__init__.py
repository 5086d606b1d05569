"""Checks of the perceptron, data parallel training and its optimizer (parts 12 to 15)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, DdpCheck="ddp.check", OptimizerCheck="optimizer", PerceptronCheck="perceptron")

"""A small, readable training framework: tensors with gradients, modules, optimizers, data loaders."""

from course_lib.autograd.data import ArrayDataset, DataLoader, DataPartitioner
from course_lib.autograd.modules import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    Parameter,
    ReLU,
    Residual,
    Sequential,
    Tanh,
)
from course_lib.autograd.operations import concatenate, cross_entropy
from course_lib.autograd.optimizers import SGD, Adam
from course_lib.autograd.tensor import Tensor, after_backward, no_grad
from course_lib.autograd.transformer import GELU, Dropout, Embedding, LayerNorm, RMSNorm

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "ArrayDataset",
    "BatchNorm2d",
    "Conv2d",
    "DataLoader",
    "DataPartitioner",
    "Dropout",
    "Embedding",
    "Flatten",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Residual",
    "Sequential",
    "Tanh",
    "Tensor",
    "after_backward",
    "concatenate",
    "cross_entropy",
    "no_grad",
]

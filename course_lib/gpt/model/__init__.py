"""GPT model: blocks, experts, pipeline stages, and the layers of each rank of a grid."""

from course_lib.gpt.model.block import Block, kinds, no_communication
from course_lib.gpt.model.decoder import Sizes, layers, loss_of
from course_lib.gpt.model.experts import MixtureOfExperts, Route, clusters, from_slots, into_slots, take
from course_lib.gpt.model.stage import Stage

__all__ = [
    "Block",
    "MixtureOfExperts",
    "Route",
    "Sizes",
    "Stage",
    "clusters",
    "from_slots",
    "into_slots",
    "kinds",
    "layers",
    "loss_of",
    "no_communication",
    "take",
]

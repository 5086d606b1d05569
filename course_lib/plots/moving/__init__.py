"""A step of real ranks, frame by frame: what each rank holds, what is on its way, and what is computed.

Each scene takes traces (see `Ranks.trace`): messages, collectives and spans, with their bytes and times. What a trace does not have, such
as the expert of each token, comes from arrays of the ranks.
"""

from course_lib.plots.moving.experts import experts
from course_lib.plots.moving.pipeline import pipeline
from course_lib.plots.moving.ring import ring_attention
from course_lib.plots.moving.sharded import fully_sharded

__all__ = ["experts", "fully_sharded", "pipeline", "ring_attention"]

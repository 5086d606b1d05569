"""Inference with a trained GPT (part 34): a rank's part of the model, texts, and the loop that calls the student's functions."""

from course_lib.gpt.serving.engine import Engine
from course_lib.gpt.serving.model import ServingModel, Text, attend, draw_weights, paged_attention, small_model

__all__ = ["Engine", "ServingModel", "Text", "attend", "draw_weights", "paged_attention", "small_model"]

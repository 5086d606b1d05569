"""Checks of serving (part 34): the cache, a text's next token, the scheduler, and the hand-over."""

from course_lib.check.serving.cache import CacheCheck
from course_lib.check.serving.forward import ForwardCheck
from course_lib.check.serving.hand_over import HandOverCheck
from course_lib.check.serving.scheduler import SchedulerCheck
from course_lib.check.serving.words import WordCheck

__all__ = ["CacheCheck", "ForwardCheck", "HandOverCheck", "SchedulerCheck", "WordCheck"]

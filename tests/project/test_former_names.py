"""Functions saved with an earlier version of the course import modules under their former names."""

import importlib

import pytest

from course_lib import students
from course_lib.former_names import FORMER_MODULES

SAVED = '''"""Written by the course's notebooks: your functions, as you ran them last."""

from course_lib.autograd.sequences import softmax
from course_lib.gpt import survey
from course_lib.gpt.flat import Flat
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.units import Hooked, Tell, hook, units


class FullyShardedDataParallel(Hooked):
    flat = Flat


def merge(x):
    return softmax(x), survey.moments, Sizes, layers, Tell, hook, units
'''


def test_functions_saved_under_the_former_names_load(tmp_path):
    (tmp_path / students.TRANSFORMER_FILE).write_text(SAVED)
    found = students.load(tmp_path)
    from course_lib.gpt.fsdp import wrapping
    from course_lib.gpt.fsdp.flat_buffer import FlatBuffer

    assert found.FullyShardedDataParallel.flat is FlatBuffer and issubclass(found.FullyShardedDataParallel, wrapping.Hooked)


@pytest.mark.parametrize("former", FORMER_MODULES)
def test_a_former_name_is_the_module_of_today(former):
    module = importlib.import_module(former)
    assert module is importlib.import_module(FORMER_MODULES[former]) and module.__name__ == FORMER_MODULES[former] == module.__spec__.name

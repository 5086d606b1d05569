"""Lines that a person may want to read: ways round the tests are flagged, and usual answers are not."""

import pytest

from grading.authoring import build
from grading.paths import parts
from grading.submission.flags import flags_of_cell

WAYS = {
    "cell = getattr(f, '__clo' + 'sure__')[0]": "'__clo'",
    "text = '{0.__closure__}'.format(f)": "__closure__",
    "match f:\n    case object(__closure__=found):\n        pass": "matches __closure__",
    "asyncio.events.sys.modules": "uses sys through another module",
    "np.ctypeslib.load_library('libc.so.6', '.')": "load_library",
    "room = np.memmap('x', dtype='u1', mode='w+', shape=9)": "memmap",
    "x.tofile('x')": "tofile",
    "np.load('x.npy', allow_pickle=True)": "allows pickles",
    "for made in trials.values():\n    made[3].append(None)": "a variable of the hidden tests",
    "trial[3][0].clear()": "a variable of the hidden tests",
    "from course_lib.gpt.serving.simulation import StaticScheduler": "a ready-made answer",
}


@pytest.mark.parametrize("line", WAYS)
def test_a_way_round_the_tests_is_flagged(line):
    flags = flags_of_cell("cell", line)
    assert any(WAYS[line] in flag.why for flag in flags), flags


def test_what_is_an_answer_to_one_part_only_is_flagged_there():
    line = "from course_lib.autograd import Adam"
    assert "a ready-made answer" in flags_of_cell("cell", line, part="09_zero3_adam")[0].why
    assert flags_of_cell("cell", line, part="15_distributed_optimizer") == []


@pytest.mark.parametrize(
    "line",
    [
        "trial = 3\nprint(trial)",
        "def f(trials):\n    return trials",
        "if __name__ == '__main__':\n    pass",
        'def f():\n    """Return f.__name__.\n\n    More.\n    """',
        "np.load('x.npy', allow_pickle=False)",
        "getattr(layer, key + '_shard')",
    ],
)
def test_a_usual_line_is_not_flagged(line):
    assert flags_of_cell("cell", line) == []


@pytest.mark.parametrize("part", parts())
def test_a_solution_has_hardly_any_flags(part):
    for cell in build.build(part).cells:
        if build.kind_of(cell) == "exercise":
            assert len(flags_of_cell(cell.id, cell.source, part=part)) <= 2

"""Answers that are alike: copies are found however they are dressed up, and what an exercise makes alike is not called so."""

import ast
import itertools
import re

import pytest

from grading.authoring import answers, build
from grading.authoring.build import kind_of
from grading.report import similarity, tokens
from grading.report.class_results import ClassResults, GradedSubmission

PART, EXERCISE = "03_naive_forward", "exercise-naive-collect-forward-input"

ORIGINAL = """%%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    batch, width = x.shape
    flat = np.empty(mp_size * x.size, dtype=x.dtype)
    mp_comm.Allgather(x.reshape(-1), flat)  # one long array
    result = np.zeros((batch, mp_size * width), dtype=x.dtype)
    for r in range(mp_size):
        block = flat[r * x.size : (r + 1) * x.size]
        result[:, r * width : (r + 1) * width] = block.reshape(batch, width)
    return result
"""
COPIES = {
    "names, comments, a docstring, spacing, lines in another order": '''%%px
# my own work
def naive_collect_forward_input(part, comm, n):
    """Collects it."""
    rows, cols = part.shape

    answer = np.zeros( (rows, n*cols), dtype = part.dtype )
    buffer = np.empty(n*part.size, dtype = part.dtype)
    comm.Allgather(part.reshape(-1), buffer)
    # now each piece
    for k in range(n):
        piece = buffer[k*part.size:(k+1)*part.size]
        answer[:, k*cols:(k+1)*cols] = piece.reshape(rows, cols)
    return answer
''',
    "brackets, lines broken, other numbers": """def naive_collect_forward_input(x, mp_comm, mp_size):
    (batch, width) = x.shape
    flat = np.empty(
        mp_size * x.size,
        dtype=x.dtype,
    )
    mp_comm.Allgather(x.reshape(-2), flat); result = (
        np.zeros((batch, mp_size * width), dtype=x.dtype)
    )
    for r in range(mp_size):
        block = flat[(r * x.size) : ((r + 3) * x.size)]
        result[:, r * width : (r + 3) * width] = block.reshape(batch, width,)
    return (result)
""",
    "within more": ORIGINAL.replace("    return", "    print('done', result.shape, batch)\n    assert result.size\n    return"),
}
# Right, and by people who have not seen each other's.
INDEPENDENT = {
    "rows": """%%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    rows = []
    for sample in range(x.shape[0]):
        line = np.empty(x.shape[1] * mp_size, x.dtype)
        mp_comm.Allgather(np.ascontiguousarray(x[sample]), line)
        rows.append(line)
    return np.array(rows)
""",
    "transposed": """%%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    columns = np.ascontiguousarray(x.T)
    everything = np.empty((mp_size * columns.shape[0], columns.shape[1]), dtype=columns.dtype)
    mp_comm.Allgather(columns, everything)
    return np.ascontiguousarray(everything.T)
""",
    "list of views": """%%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    n_batch = x.shape[0]
    n_in = x.shape[1]
    recv = np.zeros([mp_size, n_batch, n_in]).astype(x.dtype)
    mp_comm.Allgather(x, recv)
    pieces = [recv[i] for i in range(0, mp_size)]
    whole = np.hstack(pieces)
    return whole
""",
    "swapped axes": """%%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    got = np.empty(shape=(mp_size,) + x.shape, dtype=x.dtype)
    mp_comm.Allgather(x, got)
    got = np.swapaxes(got, 0, 1)
    return got.reshape((x.shape[0], x.shape[1] * mp_size)).copy()
""",
}


def lines(letters, n):
    """So many lines of code that only the same letters give."""
    words = ["".join(word) for word in itertools.product(letters, repeat=6)]
    return "%%px\n" + "".join(f"x = np.{words[i]}(x, y[{i}] + y.{words[-i - 1]})\n" for i in range(n))


def a_class(part, sources, exercise=EXERCISE):
    course = ClassResults(part, build.build(part), {})
    course.graded = {student: GradedSubmission({}, answers={exercise: source}) for student, source in sources.items()}
    return course


def found(sources, part=PART):
    course = a_class(part, sources)
    return similarity.find_similar(course, similarity.given_shingles(course))[0]


def dressed_up(source):
    """The same code with other names, without comments, and as Python writes it."""
    tree = ast.parse(source.removeprefix("%%px\n"))
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names = {name: f"my_{name[::-1]}" for name in stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} - {"self"}}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)
    return ast.unparse(tree)


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_is_found_however_it_is_dressed_up(copy):
    like = found({"ada": ORIGINAL, "eve": copy, **INDEPENDENT})
    assert [pair.students for pair in like.pairs] == [("ada", "eve")] and like.pairs[0].share > 0.7
    assert [members for _, members in like.groups] == [["ada", "eve"]]


def test_answers_of_people_who_have_not_met_are_not_alike():
    like = found({"ada": ORIGINAL, **INDEPENDENT})
    assert like.compared >= 4 and not like.pairs


@pytest.mark.slow
def test_solutions_and_right_variants_are_nobodys_own_however_they_are_written():
    """All parts: each solution and right variant, as it is and dressed up, handed in by two students each."""
    compared = 0
    for part in sorted({path.parent.name for path in build.SOLUTIONS.glob("*/variants.py")}):
        course = a_class(part, {})
        given = similarity.given_shingles(course)
        solutions = [cell.source for cell in course.source.cells if kind_of(cell) == "exercise"]
        right = [answer for answer in answers.read(part) if not answer.loses and answer.function != answers.CELL_ANSWER]
        for function in {answer.function for answer in right}:
            texts = [answer.source for answer in right if answer.function == function]
            texts += [text for text in solutions if re.search(rf"^(def|async def|class) {function}\b", text, re.MULTILINE)]
            both = [*texts, *map(dressed_up, texts)]
            like = similarity.compare(function, {str(i): text for i, text in enumerate(both * 2)}, given)
            compared += len(list(itertools.combinations(both * 2, 2)))
            assert not like.pairs, (part, function, like.pairs)
    assert compared > 1000


def test_of_short_answers_nothing_is_said():
    short = "%%px\ndef naive_collect_forward_input(x, mp_comm, mp_size):\n    return x * 3 + mp_size\n"
    like = found({"ada": short, "eve": short, "untouched": "%%px\nraise NotImplementedError", "empty": "", "no python": "def ((("})
    assert (like.pairs, like.compared, like.short) == ([], 0, 5)


def test_what_a_great_share_of_the_class_has_is_nobodys_own():
    for text in (ORIGINAL, lines("ab", 60)):
        course = {f"student{i}": text for i in range(12)} | {f"other{i}": text for i, text in enumerate(INDEPENDENT.values())}
        assert not found(course).pairs
    ring = {f"student{i}": ORIGINAL for i in range(3)} | {f"other{i}": text for i, text in enumerate(INDEPENDENT.values())}
    like = found(ring)
    assert len(like.pairs) == 3 and [members for _, members in like.groups] == [["student0", "student1", "student2"]]


def test_a_piece_in_common_is_not_enough():
    ada, eve = lines("ab", 30), lines("cd", 30)
    piece = ORIGINAL.partition("    result")[0].replace("%%px\n", "")
    assert not found({"ada": ada + piece, "eve": eve + piece, **INDEPENDENT}).pairs
    assert found({"ada": ada + piece, "eve": ada + eve, **INDEPENDENT}).pairs, "the whole of a shorter one within a longer is"


def test_the_lines_in_common_are_named():
    here, there = similarity.shared_lines(ORIGINAL, COPIES["within more"], set())
    assert here == there == set(range(2, 10)), "line 1 is the magic; from line 10 on, they differ"


def test_helpers_that_a_student_added_are_compared_with_each_other():
    course = a_class(PART, {"ada": ORIGINAL, "eve": INDEPENDENT["rows"]})
    for hand_in in course.graded.values():
        hand_in.answers["cells that the student added"] = ORIGINAL.replace("naive_collect_forward_input", "helper")
    course.graded["tim"] = GradedSubmission({}, answers={EXERCISE: INDEPENDENT["transposed"]})
    first, second = similarity.find_similar(course, similarity.given_shingles(course))
    assert not first.pairs and [pair.students for pair in second.pairs] == [("ada", "eve")]


def test_tokens_are_those_of_what_code_does():
    assert [word for word, _ in tokens.tokens("f'{a!r} b' 'c'; x = (1,)")][-3:] == ["name", "=", "0"]
    for source in ("'''", "\\", "x = (", "\tx\n y", "é = 1\x00", "%%px\n!ls\nx = 1", ")" * 5, "𝐱 = 1"):
        tokens.tokens(source)
    assert tokens.shingles("x = 1") == {}

"""The output of a cell: streams in order, progress bars, and limits on its length."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbconvert import HTMLExporter

from course_lib.engine.requests.output import OUTPUT_LIMIT, Outputs


def printed(reply):
    return "".join(o["text"] for o in reply["outputs"])


def test_what_is_printed_is_shown_while_the_cell_runs_and_once_at_its_end(kernel):
    kernel.run("from course_lib import cluster\nfrom course_lib.cluster import replies\nranks = cluster.start(2)\nseen = []")
    kernel.run(
        "before = replies.LiveOutput.show\nreplies.LiveOutput.show = lambda live, printed: (seen.extend(printed), before(live, printed))"
    )
    source = "%%px\nimport time\nfor i in range(3):\n    print('step', i)\n    time.sleep(1)\nprint('done')"
    text, error = kernel.run(source)
    assert error is None and re.sub(r"\x1b\[\d*m", "", text) == "ranks 0, 1\nstep 0\nstep 1\nstep 2\ndone\n"
    seen = ast.literal_eval(kernel.run("seen")[0])
    for rank in (0, 1):
        assert "".join(text for r, text in seen if r == rank).startswith("step 0\nstep 1\n"), seen


def test_of_a_bar_one_line_stays(eight):
    _, reply = eight.run("for i in range(101):\n    print(f'\\r{i} %', end='')\nprint('\\nnext\\r')")[0]
    assert printed(reply) == "100 %\nnext\n"
    replies = eight.run("from tqdm import tqdm\nfor _ in tqdm(range(50)):\n    time.sleep(0.01)")
    assert [printed(reply).count("%|") for _, reply in replies] == [1] * 8
    source = "for i in tqdm(range(60)):\n    time.sleep(0.01)\n    if i % 20 == 9:\n        print('step', i)"
    for _, reply in eight.run(f"from tqdm import tqdm\n{source}"):
        assert reply["outputs"][0]["text"] == "step 9\nstep 29\nstep 49\n"
        assert printed(reply).count("%|") == 1 and "100%|" in printed(reply)


def test_a_bar_of_the_notebook_is_one_line_in_every_page(kernel):
    source = "from course_lib import progress\nwith progress.bar(100, 'training') as bar:\n    for i in range(100):\n        bar.update()"
    kernel.run(f"import time\n{source}; time.sleep(0.005)")
    page, _ = HTMLExporter().from_notebook_node(kernel.notebook)
    assert page.count("training:") == 1 and "training: 100%|" in page and "100/100" in page


@pytest.mark.slow
def test_of_a_flood_the_first_and_the_last_lines_are_shown(eight):
    replies = eight.run("for i in range(10**6):\n    print('line', i)")
    for _, reply in replies:
        text = printed(reply)
        assert text.startswith("line 0\nline 1\n") and text.endswith("line 999998\nline 999999\n")
        assert "lines are left out here" in text and len(text) < 50_000


def test_what_is_printed_shown_and_said_as_an_error_stays_in_order(eight):
    source = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')\ndisplay(3)\nprint('d', end='')\n4"
    _, reply = eight.run(source)[0]
    found = [(o.get("stream"), o.get("text") or o["data"]["text/plain"]) for o in reply["outputs"]]
    assert found == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), (None, "3"), ("stdout", "d"), (None, "4")]


def test_what_is_printed_is_kept_nowhere_else(eight):
    eight.run("print('one more line')")
    (_, reply), *_ = eight.run("len(get_ipython().history_manager.outputs)")
    assert reply["outputs"][0]["data"]["text/plain"] == "0"


def test_letters_of_all_kinds_and_halves_of_them_come_through(eight):
    _, reply = eight.run("print('žluť 学生 🎓' * 1000)\nprint('half: \\ud800')")[0]
    assert printed(reply) == "žluť 学生 🎓" * 1000 + "\nhalf: \\ud800\n"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr"]),
            st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=9).flatmap(
                lambda t: st.integers(0, 9000).map(t.__mul__)
            ),
        )
    )
)
def test_a_rank_keeps_no_more_than_there_is_room_for_and_all_where_there_is(pieces):
    outputs = Outputs()
    for stream, text in pieces:
        outputs.write(stream, text)
    outputs.finish()
    whole, kept = "".join(text for _, text in pieces), "".join(o["text"] for o in outputs)
    if len(whole.encode()) <= OUTPUT_LIMIT // 2:
        assert kept == whole
    else:
        assert len(kept.encode()) <= OUTPUT_LIMIT + 100
        end = kept.split(" are left out here ...\n\n")[-1]
        assert whole.endswith(end) and (whole[:100] == kept[:100] or "\n" in whole[:OUTPUT_LIMIT])

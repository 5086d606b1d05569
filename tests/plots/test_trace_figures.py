"""A trace as a picture, as a table, and as the widget's data."""

import json

import pytest
from matplotlib.colors import to_hex

from course_lib.plots.trace import Table, Timeline, draw, lanes, timeline, widget
from course_lib.trace.timeline import Trace

ALL = (0, 1)
RECORDS = {
    0: [
        ("span", "forward", 0.0, 1.0, (), -1, 0, -1, -1, "micro batch 2"),
        ("operation", "linear", 0.1, 0.6),
        ("operation", "matmul", 0.2, 0.4),
        ("collective", "Allreduce", 1.0, 4.5, ALL, 0, 1000),
        ("send", "Send", 5.0, 5.5, ALL, 0, 80, 1, 7),
        ("started collective", "Allreduce", 6.0, 8.0, ALL, 1, 1000),
        ("span", "log", 7.0, 7.5),
    ],
    1: [
        ("collective", "Allreduce", 4.0, 4.5, ALL, 0, 1000),
        ("receive", "Recv", 4.6, 5.6, ALL, 0, 0, 0, 7),
        ("started collective", "Allreduce", 6.0, 8.0, ALL, 1, 1000),
    ],
}


def made(dropped=0):
    return Trace.from_replies({r: {"began": 0.0, "ended": 9.0, "dropped": dropped, "events": e} for r, e in RECORDS.items()}, "A step")


def test_a_picture_says_in_words_who_kept_the_others_waiting():
    picture = draw(made())
    assert picture.text == "A step: 9 s on ranks 0, 1. Rank 1 held the others up longest: 3 s in all."
    assert picture.png().startswith(b"\x89PNG")
    assert draw(made(3)).text.endswith("The first 6 events are missing: a rank keeps the latest only.")


def test_the_table_has_a_line_for_each_rank():
    said = repr(Table(made())).splitlines()
    assert len(said) == 3 and said[1].split()[:2] == ["0", "5"] and "rank 1: 3 s" in said[1]
    assert Table(made())._repr_html_().count("<tr>") == 3


def test_the_widget_gets_all_that_the_picture_shows():
    trace = made()
    data = json.loads(json.dumps(widget.timeline_data(trace, draw(trace))))
    first = data["lanes"][0]
    assert [part[2] for part in first["segments"]] == ["computing", "waiting", "transferring", "computing", "transferring", "computing"]
    assert "Allreduce #1 on ranks 0, 1, 1 kB\nfor rank 1" in first["segments"][1][4]
    assert [(name, depth, in_work) for _, _, name, depth, in_work in first["operations"]] == [("linear", 0, True), ("matmul", 1, True)]
    assert first["work"] == [[0.0, 1.0, "forward, micro batch 2", lanes.WORK_COLORS["forward"], "2"]]
    assert first["spans"] == [[7.0, 7.5, "log"]] and len(first["flights"]) == 1
    assert data["arrows"] == [[0, 5.0, 1, 5.6]]


def test_of_too_many_parts_the_widget_gets_the_longest(monkeypatch):
    monkeypatch.setattr(widget, "MAX_PARTS", 4)
    trace = made()
    kept = [part for lane in widget.timeline_data(trace, draw(trace))["lanes"] for kind in widget.KINDS for part in lane[kind]]
    assert 4 <= len(kept) < 8 and min(end - begin for begin, end, *_ in kept) >= 2.0


def test_without_a_kernel_there_is_the_still_picture(monkeypatch):
    def missing():
        raise ImportError("anywidget")

    monkeypatch.setattr(widget, "_widget_class", missing)
    data, _ = Timeline(made())._repr_mimebundle_()
    assert set(data) == {"text/html", "image/png", "text/plain"}


def test_many_events_are_few_bars_that_fill_the_row():
    """Each kind of bar is drawn at once, and short segments are merged: otherwise a long trace takes minutes, or its rows are empty."""
    n = 10_000
    call = [("collective", "Allreduce", i + 0.5, i + 1.0, ALL, i, 8) for i in range(n)]
    flights = [("started send", "Isend", i + 0.1, i + 0.4, ALL, i, 8, 1, 0) for i in range(n)]
    spans = [("span", "step", i + 0.1, i + 0.9, (), -1, 0, -1, -1, "") for i in range(n)]
    records = {r: {"began": 0.0, "ended": float(n), "dropped": 0, "events": call + flights + spans} for r in ALL}
    trace = Trace.from_replies(records)
    drawn = draw(trace).figure.axes[0].collections
    widths = [path.get_extents().width for bars in drawn for path in bars.get_paths()]
    assert len(drawn) <= 8 and len(widths) <= 2 * 4000 and sum(widths) == pytest.approx(2 * n, rel=0.01)
    assert trace.summaries()[0].overlap == pytest.approx(1.0)


def test_no_segment_draws_nothing_and_text_is_no_formula():
    trace = Trace.from_replies(
        {0: {"began": 0.0, "ended": 1.0, "dropped": 0, "events": [("span", "$x_{$", 0.0, 1.0, (), -1, 0, -1, -1, "")]}}, "1 $ or $\\frac$"
    )
    assert draw(trace).png().startswith(b"\x89PNG")
    empty = Trace.from_replies({r: {"began": 1.0, "ended": 1.0, "dropped": 0, "events": []} for r in ALL})
    assert draw(empty).png().startswith(b"\x89PNG") and len(repr(Table(empty)).splitlines()) == 3


def test_the_picture_the_widget_and_the_legend_have_the_same_colours():
    """Each colour that the widget gets is explained, and drawn in the picture; no group has the colour of work."""
    trace = made()
    data, picture = widget.timeline_data(trace, draw(trace)), draw(trace)
    drawn = {to_hex(c).upper() for bars in picture.figure.axes[0].collections for c in bars.get_facecolor()}
    used = {part[3] for part in data["lanes"][0]["segments"] if part[2] == "transferring"} | {part[3] for part in data["lanes"][0]["work"]}
    explained = {color: text for color, text, hatched in data["legend"] if not hatched}
    said = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    thin = "transfer, ranks 0, 1 (thin bar: in the background)"
    assert said == [text for _, text, _ in data["legend"]] == ["computing", "forward", "waiting for others", thin]
    assert used | {data["computing"]} == set(explained) and used <= drawn
    assert not set(lanes.group_colors([trace]).values()) & {lanes.WORK_COLORS["forward"]}


def test_groups_along_an_axis_have_one_colour():
    groups = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)]
    records = {r: [("collective", "Allreduce", i, i + 1.0, g, 0, 8) for i, g in enumerate(groups) if r in g] for r in range(4)}
    trace = Trace.from_replies({r: {"began": 0.0, "ended": 5.0, "dropped": 0, "events": e} for r, e in records.items()})
    colors = lanes.group_colors([trace])
    assert colors[0, 1] == colors[2, 3] != colors[0, 2] == colors[1, 3] != colors[0, 1, 2, 3] != colors[0, 1]
    told = [text for _, text, _ in lanes.Lanes([trace]).legend()]
    assert told == ["computing", "transfer, ranks 0, 1 and the like", "transfer, ranks 0, 2 and the like", "transfer, all ranks"]


def test_panels_have_one_scale_and_numbers_where_no_call_hides_them():
    records = {
        "short": [("span", "backward", 0.0, 2.0, (), -1, 0, -1, -1, "block 7")],
        "long": [("span", "forward", 0.0, 8.0, (), -1, 0, -1, -1, "micro batch 12"), ("collective", "Allreduce", 1.0, 5.0, (0,), 0, 8)],
    }
    traces = {
        name: Trace.from_replies({0: {"began": 0.0, "ended": events[0][3], "dropped": 0, "events": events}})
        for name, events in records.items()
    }
    picture = timeline(traces, "Two runs")
    short, long = picture.figure.axes
    assert short.get_xlim() == long.get_xlim() == (0, 8.0)
    assert [t.get_text() for t in short.texts] == ["7"]
    assert [(t.get_text(), t.get_position()[0]) for t in long.texts] == [("12", 6.5)]
    assert "short: 2 s, ranks compute 100% of the time; long: 8 s, ranks compute 50% of the time" in picture.text
    with pytest.raises(ValueError, match=r"there is no trace to draw for 'None'\. While a hand-in is graded"):
        timeline({}, "None")

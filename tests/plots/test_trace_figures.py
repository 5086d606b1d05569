"""A trace as a picture, as a table, and as the widget's data."""

import json

import pytest

from course_lib.plots.trace import Table, Timeline, draw, widget
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
    assert picture.text == "A step: 9 s on ranks 0, 1. The others waited longest for rank 1: 3 s in all."
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
    assert [(name, depth) for _, _, name, depth in first["operations"]] == [("linear", 0), ("matmul", 1)]
    assert first["spans"] == [[0.0, 1.0, "forward, micro batch 2"]] and len(first["flights"]) == 1
    assert data["arrows"] == [[0, 5.0, 1, 5.6]]


def test_of_too_many_parts_the_widget_gets_the_longest(monkeypatch):
    monkeypatch.setattr(widget, "MAX_PARTS", 4)
    trace = made()
    lanes = widget.timeline_data(trace, draw(trace))["lanes"]
    kept = [part for lane in lanes for kind in ("segments", "operations", "flights", "spans") for part in lane[kind]]
    assert 4 <= len(kept) < 8 and min(end - begin for begin, end, *_ in kept) >= 2.0


def test_without_a_kernel_there_is_the_still_picture(monkeypatch):
    def missing():
        raise ImportError("anywidget")

    monkeypatch.setattr(widget, "_widget_class", missing)
    data, _ = Timeline(made())._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}


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

"""mesh, traffic, wire, px, check, datasets, plots, lab, doctor and the two lists of packages."""

import gzip
import re
import struct
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from course_lib import datasets, plots, traffic
from course_lib.check import Check, CheckFailed
from course_lib.cluster import replies
from course_lib.cluster.notebook import magic
from course_lib.collectives.progress import operations
from course_lib.engine import serialization
from course_lib.engine.requests import handler
from course_lib.mesh import Mesh, grids
from course_lib.tools import doctor, lab

ROOT = Path(__file__).resolve().parent.parent


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_mesh_has_each_rank_once_in_each_kind_of_group(sizes):
    mesh = Mesh(**dict(zip(("dp", "pp", "cp", "tp"), sizes, strict=False)))
    everyone = list(range(int(np.prod(sizes))))
    assert mesh.size == len(everyone) and [mesh.ranks[mesh.coordinates(r)] for r in everyone] == everyone
    for place, axis in enumerate(mesh.shape):
        groups = mesh.groups(axis)
        assert sorted(r for group in groups for r in group) == everyone
        for group in groups:
            assert len(group) == getattr(mesh, axis) == sizes[place] and all(mesh.group(axis, r) == group for r in group)
            for i, r in enumerate(group):
                here, first = mesh.coordinates(r), mesh.coordinates(group[0])
                assert here[place] == i and here[:place] + here[place + 1 :] == first[:place] + first[place + 1 :]
    assert mesh.groups(*mesh.shape) == [tuple(everyone)] and mesh.groups() == [(r,) for r in everyone]


@given(st.integers(1, 9), st.integers(1, 9))
def test_grids_are_all_that_have_two_axes(mp_size, dp_size):
    mesh = Mesh(dp=dp_size, mp=mp_size)
    assert mesh in grids(mesh.size) and mesh != Mesh(mp=mp_size, dp=dp_size), "the order of the axes counts"


def test_a_mesh_of_nothing_gets_a_sentence():
    for axes, said in (
        (dict(dp=1, mp=0), "mp must be a positive whole number; got 0"),
        (dict(dp=2.0), "dp must be a positive whole number; got 2.0"),
        ({}, "a grid needs an axis"),
        (dict(groups=2), "an axis cannot be called groups"),
    ):
        with pytest.raises(ValueError, match=said):
            Mesh(**axes)
    with pytest.raises(ValueError, match="no rank 4"):
        Mesh(dp=2, mp=2).coordinates(4)
    with pytest.raises(ValueError, match="there is no axis 'tp'"):
        Mesh(dp=2).groups("tp")
    with pytest.raises(AttributeError, match="its axes are dp"):
        _ = Mesh(dp=2).tp


def test_ring_bytes_are_the_papers():
    assert traffic.wire_bytes("Allreduce", 8, 8000) == 14000
    assert traffic.wire_bytes("Allgather", 8, 8000) == traffic.wire_bytes("Reduce_scatter", 8, 8000) == 7000
    assert traffic.wire_bytes("Barrier", 8, 0) == traffic.wire_bytes("Allreduce", 1, 100) == 0


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def as_text(value):
    """A value that went over the wire as text, as a notebook's message does."""
    return serialization.decode(serialization.loads(serialization.dumps({"value": serialization.encode(value)}))["value"])


def as_bytes(value):
    """The same as text and bytes, as an isolated rank's reply does."""
    text, *arrays = serialization.parts({"value": serialization.encode(value)})
    return serialization.decode(serialization.loads(text)["value"], b"".join(arrays))


@given(plain)
def test_plain_values_come_through_the_wire(value):
    assert as_text(value) == as_bytes(value) == value


@given(hnp.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?", "c8"]), hnp.array_shapes(min_dims=0, min_side=0)))
def test_arrays_come_through_the_wire(array):
    for back in (as_text(array), as_bytes(array), as_bytes({1.5: (0, [array])})[1.5][1][0]):
        assert back.dtype == array.dtype and back.shape == array.shape and back.flags.writeable
        np.testing.assert_array_equal(back, array)


def test_an_array_is_sent_as_it_was_when_the_function_returned():
    array = np.zeros(3)
    reply = {"value": serialization.encode(array)}
    array[:] = 1  # as a collective does that ends later
    text, *arrays = serialization.parts(reply)
    for back in (
        serialization.decode(serialization.loads(serialization.dumps(reply))["value"]),
        serialization.decode(serialization.loads(text)["value"], b"".join(arrays)),
    ):
        assert back.tolist() == [0, 0, 0]


def test_what_has_no_form_is_refused_and_not_sent_as_bytes():
    for write in (serialization.dumps, serialization.parts):
        with pytest.raises(TypeError, match="ndarray has no form as JSON"):
            write({"outputs": [np.zeros(3)]})


def test_several_arrays_come_each_into_its_own_place():
    many = {np.float64(i): [np.full(i, i), (np.arange(4.0)[::2], np.int64(i))] for i in range(5)}
    for back in (as_text(many), as_bytes(many)):
        assert list(back) == list(many)
        for i, (first, (second, third)) in back.items():
            assert first.tolist() == [int(i)] * int(i) and second.tolist() == [0, 2] and not second.flags.c_contiguous and third == i


def test_what_is_not_plain_does_not_come_through():
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    for value in (Evil(), np.array([Evil()]), print, {1: Evil()}):
        assert "Evil" in repr(as_text(value)) or "<" in repr(as_text(value))
    for forged in ({"array": "", "dtype": "O", "shape": [0]}, [1], 1.5):
        with pytest.raises((ValueError, TypeError)):
            serialization.decode(forged)


PRIME = (1 << 61) - 1  # numbers that differ by it have one hash
COLLIDING = {
    "numbers": [i * PRIME for i in range(20_000)],
    "complex": [
        serialization.loads(serialization.dumps(serialization.encode(np.complex128(complex(-1000003.0 * i, i))))) for i in range(20_000)
    ],
    "tuples": [{"tuple": [i * PRIME, 1]} for i in range(20_000)],
}


@pytest.mark.parametrize("kind", COLLIDING)
def test_a_dict_whose_keys_were_chosen_to_meet_takes_no_time(kind):
    began = time.process_time()
    found = serialization.decode({"dict": [[key, 0] for key in COLLIDING[kind]]})
    assert time.process_time() - began < 2 and "20,000 keys, more than 100 of which are no texts" in repr(found)


EMPTY = {"array": "", "dtype": "<f8", "layout": "C"}


@pytest.mark.parametrize(
    "forged",
    [
        {"float": "0x1p99999"},
        {"scalar": {"float": "0x1p99999"}},
        EMPTY | {"shape": [0, 1 << 61]},
        EMPTY | {"shape": [0, 1 << 61], "layout": "view"},
        EMPTY | {"shape": [1 << 100, 0]},
        EMPTY | {"shape": [0, *[1 << 20] * 4]},
        EMPTY | {"shape": [0] * 100_000},
        EMPTY | {"shape": [-1]},
        EMPTY | {"shape": 5},
        EMPTY | {"shape": {}},
        {"array": "", "dtype": "<f8"},
        {"array": 5, "dtype": "<f8", "shape": [0]},
        {"array": 24, "dtype": "<f8", "shape": [3]},
        {"list": [{"array": 16, "dtype": "<f8", "shape": [2]}] * 2},
        {"array": -8, "dtype": "<f8", "shape": [1]},
        {"array": 1 << 80, "dtype": "<f8", "shape": [1]},
        {"array": True, "dtype": "|u1", "shape": [1]},
        {"array": 16.0, "dtype": "<f8", "shape": [2]},
        {"dict": [[{"list": []}, 0]]},
        {"dict": 5},
        {"list": 5},
    ],
    ids=range(21),
)
def test_what_is_no_value_is_refused_and_not_tried(forged):
    with pytest.raises(ValueError, match="a rank"):
        serialization.decode(forged, bytes(16))


def test_keys_and_dtypes_that_take_long_do_not_come_through():
    members = [0] * 100_000
    for forged in (
        {"dict": [[{"tuple": members}, 0]]},
        {"dict": [[{"tuple": [{"tuple": members}]}, 0]]},
        {"array": "", "dtype": "f4," * 100_000, "shape": [0]},
        {"array": "", "dtype": ["f4"] * 100_000, "shape": [0]},
    ):
        with pytest.raises(ValueError, match="does not come from a rank"):
            serialization.decode(forged)
    kept = {f"layer {i}": i for i in range(5000)} | {i: i for i in range(50)} | {(2, "F", None): 1, 0.5: 2, np.float32(3.5): 3}
    assert as_text(kept) == kept


def test_alike_is_shown_once_and_the_odd_one_by_itself():
    found = [(r, {"outputs": [{"stream": "stdout", "text": "odd" if r == 2 else "same"}], "error": None}) for r in range(4)]
    assert [who for who, _ in replies.group(found, "outputs")] == [[0, 1, 3], [2]]


def test_the_cause_comes_before_what_follows_from_it():
    wait = {"name": "DeadlockError", "kind": ["DeadlockError"], "message": "waits", "lines": [], "place": ""}
    cause = {"name": "ZeroDivisionError", "kind": ["ZeroDivisionError"], "message": "division", "lines": [], "place": ""}
    with pytest.raises(replies.RanksError) as caught:
        replies.raise_errors([(r, {"error": cause if r == 3 else wait}) for r in range(4)])
    assert [who for who, _ in caught.value.groups] == [[3], [0, 1, 2]]
    assert str(caught.value) == "rank 3: ZeroDivisionError: division"


def test_a_wrong_option_of_px_gets_a_sentence():
    with pytest.raises(ValueError, match="--targets 0,2"):
        magic._arguments().parse_args(["--nonsense"])
    with pytest.raises(ValueError, match="expected ranks such as 2 or 0,1 or 1:4"):
        magic.targets("first", 4)


def test_a_check_says_what_and_where():
    check = Check("f")
    with pytest.raises(CheckFailed, match=r"x on rank 2 has shape \(2,\), expected \(3,\)"):
        check.array(np.ones(2), np.ones(3), name="x", rank=2)
    with pytest.raises(CheckFailed, match="x on rank 2 has dtype float64, expected float32"):
        check.array(np.ones(3), np.ones(3, np.float32), name="x", rank=2)
    with pytest.raises(CheckFailed, match=r"at \[1\] it is 5.0, expected 1.0"):
        check.array(np.array([1.0, 5.0]), np.ones(2), name="x", rank=0)
    with pytest.raises(CheckFailed, match="NumPy array; got None"):
        check.array(None, np.ones(2), name="x", rank=0)
    with pytest.raises(CheckFailed, match="must return 2 values; got 3 values"):
        check.tuple((1, 2, 3), 2, name="f", rank=0)
    for wrong in (2.0, True, "2", None, 3):
        with pytest.raises(CheckFailed):
            check.value(wrong, 2, name="n", rank=0)
    check.value(np.int64(2), 2, name="n", rank=0)
    with pytest.raises(CheckFailed):
        check.array(np.array([np.nan]), np.array([1.0]), name="x", rank=0, rtol=1e-3)


def test_a_hidden_check_shows_no_value_but_its_seed():
    check = Check("f", show=False)
    for compare in (
        lambda: check.array(np.array([1.0, 5.0]), np.array([1.0, 123.0]), name="x", rank=0),
        lambda: check.value(7, 123, name="x", rank=0),
    ):
        with pytest.raises(CheckFailed) as caught:
            compare()
        assert "123" not in str(caught.value).replace(str(check.seed), "") and f"seed {check.seed}" in str(caught.value)


def test_digits_come_along():
    data = datasets.load("digits")
    assert data.x_train.shape == (1440, 64) and data.x_test.shape == (357, 64)
    assert data.x_train.dtype == np.float32 and data.x_train.min() == 0 and data.x_train.max() == 1
    assert data.y_train.dtype == np.int64 and set(data.y_train) == set(range(10))
    from sklearn.datasets import load_digits

    assert sorted(load_digits().data.sum(axis=1) / 16) == sorted(np.concatenate([data.x_train, data.x_test]).sum(axis=1))


def idx(array, code):
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fill(folder, images, labels, zipped):
    folder.mkdir()
    for name in datasets._FILES:
        data = idx(images if "images" in name else labels, 8)
        (folder / (name + (".gz" if zipped else ""))).write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_read_from_a_folder(tmp_path, monkeypatch, zipped):
    images = np.arange(5 * 28 * 28, dtype=np.uint8).reshape(5, 28, 28)
    fill(tmp_path / "mnist", images, np.arange(5, dtype=np.uint8), zipped)
    monkeypatch.setenv(datasets.DATA_DIR_ENV, str(tmp_path))
    data = datasets.load("mnist")
    np.testing.assert_allclose(data.x_train, images.reshape(5, 784) / 255, rtol=1e-6)
    assert data.x_train.dtype == np.float32 and data.y_test.tolist() == [0, 1, 2, 3, 4]


def test_a_file_that_is_cut_short_gets_a_sentence(tmp_path):
    (tmp_path / "a").write_bytes(idx(np.zeros((5, 28, 28), np.uint8), 8)[:-1])
    with pytest.raises(datasets.DataError, match="3935 bytes, expected 3936: it is truncated"):
        datasets.read_idx(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"<html>")
    with pytest.raises(datasets.DataError, match="not an IDX file"):
        datasets.read_idx(tmp_path / "b")


def test_no_file_and_no_network_gets_a_sentence(tmp_path, monkeypatch):
    import pooch

    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    monkeypatch.setenv(datasets.DATA_DIR_ENV, str(tmp_path))
    with pytest.raises(datasets.DataError) as caught:
        datasets.load("mnist")
    for words in (str(tmp_path), "train-images-idx3-ubyte", "COURSE_DATA_DIR", "Without one", "digits"):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="choose one of digits, mnist, fashion-mnist"):
        datasets.load("imagenet")


def test_of_those_who_need_a_download_one_fetches_it(tmp_path):
    fetched = []

    def there():
        return (tmp_path / "data").read_text() if (tmp_path / "data").exists() else None

    def fetch():
        fetched.append(1)
        time.sleep(0.2)
        (tmp_path / "data").write_text("whole")
        return there()

    with ThreadPoolExecutor(6) as ranks:
        found = [f.result(30) for f in [ranks.submit(datasets.fetch_once, tmp_path, there, fetch) for _ in range(6)]]
    assert found == ["whole"] * 6 and fetched == [1]


def test_figures_are_drawn_from_what_ranks_hold():
    x = np.arange(40).reshape(10, 4)
    picture = plots.holdings(x, [x[:5], x[5:]], "Rows")
    assert "rank 0 rows 0–4 of all columns; rank 1 rows 5–9" in picture.text
    data, size = picture._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG") and size["image/png"]["width"] > 100
    guess = plots.exchange([np.arange(2)] * 3, [np.arange(2)] * 3, "Same.", (1, [0, 5]))
    assert "for rank 1, 1 of 2 values are right" in guess.text
    assert "0 of 2" in plots.exchange([np.arange(2)] * 3, [np.arange(2)] * 3, "Same.", (1, "words")).text
    assert "15 kB" in plots.traffic([[("Allreduce", (0, 1), 1, 15000)]]).text
    assert len({plots.color(r) for r in range(8)}) == 8


def test_make_lab_adds_and_never_overwrites(tmp_path):
    notebooks = tmp_path / "notebooks" / "01_a"
    notebooks.mkdir(parents=True)
    (notebooks / "01_a.ipynb").write_text("released")
    work = tmp_path / "my_work"
    assert [p.name for p in lab.copy_new(tmp_path / "notebooks", work)] == ["01_a.ipynb"]
    (work / "01_a.ipynb").write_text("my answer")
    (work / "notes.txt").write_text("mine")
    (notebooks / "01_a.ipynb").write_text("released again")
    assert lab.copy_new(tmp_path / "notebooks", work) == []
    assert (work / "01_a.ipynb").read_text() == "my answer"
    assert sorted(p.name for p in work.iterdir()) == [".originals", "01_a.ipynb", "notes.txt"]


def test_make_lab_listens_on_loopback_with_a_token(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    words = " ".join(lab.command(tmp_path, []))
    assert "--ServerApp.ip=127.0.0.1" in words and "token" not in words  # Jupyter makes a token
    assert "--no-browser" in words or doctor.sys.platform == "darwin"


def test_what_a_user_says_to_make_lab_is_said_once(tmp_path):
    for said in (["--ServerApp.ip=0.0.0.0"], ["--ip=0.0.0.0"], ["--ip", "0.0.0.0"]):
        words = lab.command(tmp_path, [*said, "--log-level=INFO"])
        assert words[-len(said) - 1 :] == [*said, "--log-level=INFO"] and "127.0.0.1" not in str(words) and "ERROR" not in str(words)
    assert f"--ServerApp.root_dir={tmp_path}" in words


@pytest.mark.slow
def test_the_doctor_has_a_line_for_everything():
    lines = [line for _, line in doctor.report()]
    for word in ("Python 3", "MPICH", "4 ranks start", "cores", "memory", "threads", "/dev/shm", "browser", "network"):
        assert any(word in line for line in lines), f"no line about {word}"
    assert not [line for line in lines if line.startswith("PROBLEM")]


def names(requirements):
    return {re.match(r"[A-Za-z0-9-]+", r)[0].lower() for r in requirements}


def test_conda_and_pip_install_the_same_packages_and_a_student_gets_no_more_than_needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = names(project["dependencies"])
    lines = re.findall(r"^\s+- ([A-Za-z0-9].*?)(?:\s+#.*)?$", (ROOT / "environment.yml").read_text(), re.MULTILINE)
    assert names(lines) - {"python", "pip", "conda-forge", "pip:"} == wanted
    assert not wanted & {"nbgrader", "jupytext", "nbclient", "playwright", "uv", "ruff", "hypothesis", "pytest", "pytest-xdist"}


def test_versions_are_pinned_without_an_address():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text and all("==" in line for line in text.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = names(project["dependencies"]) | names(extras["dev"]) - {project["name"]} | names(extras["grading"])
    assert wanted <= names(text.splitlines())


def test_an_interrupt_waits_where_its_own_thread_communicates(monkeypatch):
    monkeypatch.setattr(handler, "_interruptible_from", 0.0)
    monkeypatch.setattr(operations.progress_state, "deferrals", 1)
    with pytest.raises(KeyboardInterrupt):  # another thread communicates
        handler._interrupted(2, sys._getframe())
    monkeypatch.setattr(handler, "_interruptible_from", 0.0)
    names = {"sys": sys}
    exec(compile("frame = sys._getframe()", f"{handler.COLLECTIVES_FOLDER}some.py", "exec"), names)
    handler._interrupted(2, names["frame"])
    assert operations.progress_state.interrupt_pending
    operations.progress_state.interrupt_pending = False

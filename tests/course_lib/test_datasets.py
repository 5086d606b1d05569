"""Data sets: those that come along, those read from a folder, and those that are downloaded once."""

import gzip
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from course_lib import datasets


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

"""Drawn shapes, CIFAR-10's files, and ResNet-9 trained on them from a shell."""

import io
import os
import tarfile

import numpy as np
import pytest
from machine import mpiexec

from course_lib.datasets import DATA_DIR_ENV, DataError, images


def records(n, seed, label=None):
    """A file in the format of CIFAR-10's binary version, with its labels and pixels."""
    random = np.random.default_rng(seed)
    labels, pixels = random.integers(0, 10, n), random.integers(0, 256, (n, 3, 32, 32))
    if label is not None:
        labels[-1] = label
    table = np.concatenate([labels[:, None], pixels.reshape(n, -1)], axis=1).astype(np.uint8)
    return labels, pixels, table.tobytes()


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A folder with the six files, small, where the course looks for data."""
    for i, name in enumerate([*images._TRAIN, images._TEST]):
        (tmp_path / name).write_bytes(records(12, i)[2])
    monkeypatch.setenv(DATA_DIR_ENV, str(tmp_path))
    return tmp_path


def test_shapes_are_the_same_each_time_and_all_classes_occur():
    x, y = images.shapes(200, seed=4)
    again = images.shapes(200, seed=4)[0]
    assert x.shape == (200, 32, 32, 3) and x.dtype == np.float32 and np.array_equal(x, again)
    assert set(y) == set(range(10)) and y.dtype == np.int64
    assert not np.array_equal(x, images.shapes(200, seed=5)[0])
    data = images.load()
    assert len(data.x_train) == 2000 and len(data.x_test) == 500
    assert abs(data.x_train.mean()) < 0.2 and 0.5 < data.x_train.std() < 1.5


def test_cifar_files_are_read_pixel_by_pixel(tmp_path):
    labels, pixels, raw = records(7, 0)
    (tmp_path / "batch.bin").write_bytes(raw)
    x, y = images.read_cifar(tmp_path / "batch.bin")
    assert x.shape == (7, 32, 32, 3) and x.dtype == np.float32 and x.flags.c_contiguous
    assert np.array_equal(y, labels)
    assert np.allclose(x[3, 4, 5], pixels[3, :, 4, 5] / 64 - 1.9)


def test_cifar_is_found_in_the_folder(cifar):
    data = images.load("cifar10")
    assert data.x_train.shape == (60, 32, 32, 3) and data.x_test.shape == (12, 32, 32, 3)
    assert np.array_equal(data.y_train[12:24], records(12, 1)[0])


def test_cifar_is_unpacked_from_the_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(DATA_DIR_ENV, raising=False)
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as files:
        for i, name in enumerate([*images._TRAIN, images._TEST]):
            raw = records(3, i)[2]
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(raw)
            files.addfile(entry, io.BytesIO(raw))
    asked = []
    monkeypatch.setattr("pooch.retrieve", lambda url, *rest: asked.append((url, rest[0])) or str(tmp_path / "archive.tar.gz"))
    assert len(images.load("cifar10").x_train) == 15
    assert asked == [(images.CIFAR_URL, f"md5:{images.CIFAR_MD5}")]
    assert len(images.load("cifar10").x_test) == 3 and len(asked) == 1  # unpacked once


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "has 0 bytes, not a multiple of 3073"),
        (records(2, 0)[2][:-5], "not a multiple of 3073"),
        (records(2, 0, label=11)[2], "has the label 11; CIFAR-10 has 0 to 9"),
    ],
)
def test_a_bad_file_gets_a_sentence(tmp_path, raw, said):
    (tmp_path / "batch.bin").write_bytes(raw)
    with pytest.raises(DataError, match=said):
        images.read_cifar(tmp_path / "batch.bin")


def test_no_file_and_no_network_gets_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(DATA_DIR_ENV, str(tmp_path / "nothing here"))
    monkeypatch.setattr(images, "CIFAR_URL", "http://127.0.0.1:9/cifar.tar.gz")
    with pytest.raises(DataError, match=r"looked for data_batch_1.bin (.|\n)*nothing here(.|\n)*or use the drawn shapes"):
        images.load("cifar10")
    with pytest.raises(ValueError, match="there is no data set 'cifar'; choose one of shapes, cifar10"):
        images.load("cifar")


@pytest.mark.slow
def test_resnet_learns_the_shapes_on_two_ranks():
    done = mpiexec(2, "-m", "course_lib.training.resnet", "--epochs", "4")
    assert done.returncode == 0, done.stderr
    assert "ResNet-9, width 8, shapes, 2 ranks: 124 steps" in done.stdout
    assert float(done.stdout.split("test accuracy ")[1].split()[0]) >= 0.6


def test_resnet_trains_on_cifar_files(cifar):
    done = mpiexec(2, "-m", "course_lib.training.resnet", "--data", "cifar10", "--epochs", "1", "--batch-size", "20", "--width", "4")
    assert done.returncode == 0, done.stderr
    assert "cifar10, 2 ranks: 3 steps" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch-size", "7"], "2 ranks must divide the batch of 7"),
        (["--lr", "0"], "width, epochs and lr must be positive"),
        (["--batch-size", "4000"], "a batch of 4000 is larger than the 2000 training images"),
        (["--data", "imagenet"], "invalid choice: 'imagenet'"),
        (["--data", "cifar10"], "cannot be read|not a multiple"),
    ],
)
def test_bad_words_get_one_sentence(tmp_path, words, said):
    for name in (*images._TRAIN, images._TEST):
        (tmp_path / name).write_bytes(b"too short")
    done = mpiexec(2, "-m", "course_lib.training.resnet", *words, env={**os.environ, DATA_DIR_ENV: str(tmp_path)})
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert any(part in done.stderr for part in said.split("|"))
    assert len([line for line in done.stderr.splitlines() if "error:" in line or "course_lib.training.resnet:" in line]) == 1

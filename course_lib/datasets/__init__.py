"""Images to train on: handwritten digits, which are included, and MNIST and Fashion-MNIST from files.

The digits are scikit-learn's: 1,797 real images of 8 x 8 pixels, part of its wheel, so they need no network. The larger sets are
read from a folder, or downloaded atomically and with a checksum, once per machine.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

DATA_DIR_ENV = "COURSE_DATA_DIR"
DATASET_NAMES = ("digits", "mnist", "fashion-mnist")
_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}

# Folder of Debian's package dataset-fashion-mnist.
_KNOWN_PLACES = {"mnist": (), "fashion-mnist": ("/usr/share/datasets/fashion-mnist",)}
_SOURCES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}
_MD5 = {
    "mnist": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


class DataError(RuntimeError):
    """A data set is not available; the message says what was looked for, where, and what to do."""


@dataclass(frozen=True)
class Dataset:
    """Images and labels for training and testing.

    Attributes
    ----------
    x_train, x_test : numpy.ndarray
        float32, shape ``(n, pixels)``, values from 0 to 1.
    y_train, y_test : numpy.ndarray
        int64, shape ``(n,)``, the classes from 0 to 9.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(name: str = "digits") -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        "digits" (64 pixels; 1,440 training and 357 test images), "mnist" or "fashion-mnist" (784 pixels; 60,000 and
        10,000).

    Raises
    ------
    ValueError
        There is no data set of that name.
    DataError
        Its files are not on this machine and cannot be downloaded.

    Examples
    --------
    >>> load("digits").x_train.shape
    (1440, 64)
    """
    data = read(name)
    return replace(data, x_train=scaled(data.x_train), x_test=scaled(data.x_test))


def read(name: str) -> Dataset:
    """Load a data set with the pixels as in its files: uint8, 0 to 255, except for the digits; see `load`."""
    if name not in DATASET_NAMES:
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(DATASET_NAMES)}.")
    if name == "digits":
        return _digits()
    x_train, y_train, x_test, y_test = (read_idx(path) for path in _find_or_download(name))
    flat = [x.reshape(len(x), -1) for x in (x_train, x_test)]
    return Dataset(name, flat[0], y_train.astype(np.int64), flat[1], y_test.astype(np.int64))


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Convert pixels to float32, 0 to 1; float32 arrays are returned unchanged."""
    if pixels.dtype != np.uint8:
        return pixels
    out, step = np.empty(pixels.shape, np.float32), 256
    for start in range(0, len(out), step):  # in pieces that fit into the core's cache
        part = out[start : start + step]
        part[...] = pixels[start : start + step]
        part /= np.float32(255)
    return out


def _digits() -> Dataset:
    # Read the file in scikit-learn's wheel without importing scikit-learn, which takes a second,
    # and on eight ranks eight of them.
    package = importlib.util.find_spec("sklearn")
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz" if package else None
    if file is None or not file.exists():
        raise DataError(
            f"digits: {file or 'scikit-learn'} is missing. Install the course again: pip install --force-reinstall scikit-learn."
        )
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    x, y = table[:, :-1] / np.float32(16), table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))  # the file is sorted by writer
    train, test = order[:1440], order[1440:]
    return Dataset("digits", x[train], y[train], x[test], y[test])


def read_idx(path: str | Path) -> np.ndarray:
    """Read an array from a file in MNIST's IDX format, gzipped or not.

    Raises
    ------
    DataError
        The file is not in this format, or is truncated.
    """
    path = Path(path)
    try:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _DTYPES:
        raise DataError(f"{path} is not an IDX file: it begins with {data[:4].hex(' ')}, expected 00 00 and a type.")
    ndim = data[3]
    start = 4 + 4 * ndim
    shape = tuple(np.frombuffer(data[4:start], ">u4").astype(int).tolist()) if len(data) >= start else None
    dtype = np.dtype(_DTYPES[data[2]])
    expected = int(np.prod(shape)) * dtype.itemsize if shape else 0
    if shape is None or len(data) - start != expected:
        raise DataError(f"{path} has {len(data)} bytes, expected {start + expected}: it is truncated; download it again.")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _find_or_download(name: str) -> list[Path]:
    """Find the four files of a data set: in a folder, or downloaded once."""
    chosen = os.environ.get(DATA_DIR_ENV)
    folders = [Path(chosen) / name, Path(chosen)] if chosen else []
    folders += map(Path, _KNOWN_PLACES[name])
    found = _find_files(folders)
    if found:
        return found
    folder = cache(name)
    folders.append(folder)

    def fetch() -> list[Path]:
        facts = zip(_FILES, _MD5[name], strict=True)
        return [retrieve(f"{_SOURCES[name]}{file}.gz", md5, f"{file}.gz", folder) for file, md5 in facts]

    try:
        return fetch_once(folder, lambda: _find_files([folder]), fetch)
    except Exception as error:
        places = ", ".join(map(str, folders))
        debian = " On Debian and Ubuntu: apt install dataset-fashion-mnist." if name == "fashion-mnist" else ""
        raise DataError(
            f"{name}: looked for {_FILES[0]}(.gz) and its three companions in {places}, and could not download them from "
            f"{_SOURCES[name]} ({type(error).__name__}). With a network, try again. Without one, put the four files into a "
            f"folder and set {DATA_DIR_ENV} to it, or use the digits, which are included.{debian}"
        ) from None


def _find_files(folders: list[Path]) -> list[Path] | None:
    """Return the four files from the first folder that has them all; None if there is no such folder."""
    for folder in folders:
        found = [next((p for p in (folder / f, folder / f"{f}.gz") if p.exists()), None) for f in _FILES]
        if all(found):
            return found
    return None


def cache(name: str) -> Path:
    """Folder in which a data set's files are cached."""
    import pooch  # imported late, as it takes a tenth of a second

    return Path(pooch.os_cache("distributed-training-course")) / name


def fetch_once(folder: Path, there: Callable[[], object], fetch: Callable[[], object]) -> object:
    """Return existing files, or have one process fetch them while the others that need them wait.

    Parameters
    ----------
    folder : Path
        Folder for the files; created if it does not exist.
    there : callable
        Returns the existing files, or None.
    fetch : callable
        Fetches them.
    """
    found = there()
    if found:
        return found
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        return there() or fetch()


def retrieve(url: str, md5: str, name: str, folder: Path) -> Path:
    """Download a file with this checksum; it appears in the folder once it is complete."""
    import pooch

    return Path(pooch.retrieve(url, f"md5:{md5}", name, os.fspath(folder)))


def classification() -> Dataset:
    """Artificial classification data: scikit-learn's `make_classification` with a fixed seed.

    Returns
    -------
    Dataset
        10,000 samples with 1024 features in 32 classes, float32: 8,000 for training, 2,000 for testing.
    """
    from sklearn.datasets import make_classification

    x, y = make_classification(
        10_000, 1024, n_informative=64, n_redundant=64, n_classes=32, n_clusters_per_class=1, class_sep=3.0, random_state=0
    )
    x, y = x.astype(np.float32), y.astype(np.int64)
    x /= x.std()
    return Dataset("classification", x[:8000], y[:8000], x[8000:], y[8000:])

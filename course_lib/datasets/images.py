"""Colour images of 32 x 32 pixels in 10 classes: generated shapes, which need no download, and CIFAR-10.

Images are float32, ``(n, 32, 32, 3)``, with mean 0 and a standard deviation of about 1.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from course_lib import datasets
from course_lib.datasets import DATA_DIR_ENV, DataError, Dataset

IMAGE_SET_NAMES = ("shapes", "cifar10")
SHAPES = ("disk", "ring", "square", "frame", "triangle", "plus", "cross", "bars", "columns", "checkers")
IMAGE_SIZE_PIXELS = 32
IMAGES_PER_DRAW = 100  # images drawn at once: a whole data set would take 250 MB on each rank
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_TEST = "test_batch.bin"
_RECORD = 1 + 3 * IMAGE_SIZE_PIXELS * IMAGE_SIZE_PIXELS  # a label, and three planes of pixels


def load(name: str = "shapes") -> Dataset:
    """Load a data set by name, "shapes" or "cifar10"; its arrays have the shape ``(n, 32, 32, 3)``.

    Raises
    ------
    ValueError
        There is no data set of that name.
    DataError
        CIFAR-10's files are not on this machine and cannot be downloaded.
    """
    if name not in IMAGE_SET_NAMES:
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(IMAGE_SET_NAMES)}.")
    if name == "shapes":
        return Dataset("shapes", *shapes(2000, seed=0), *shapes(500, seed=1))
    folder = _find_cifar()
    parts = [read_cifar(folder / file) for file in _TRAIN]
    x_test, y_test = read_cifar(folder / _TEST)
    return Dataset("cifar10", np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), x_test, y_test)


def shapes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw shapes with random positions, sizes and colours on a noisy background.

    Returns
    -------
    x : numpy.ndarray
        float32, ``(n, 32, 32, 3)``.
    y : numpy.ndarray
        int64, ``(n,)``: indices into `SHAPES`.
    """
    random = np.random.default_rng(seed)
    y = random.integers(0, len(SHAPES), n)
    centre, radius = random.uniform(11, 21, (2, n, 1, 1)), random.uniform(6, 11, (n, 1, 1))
    ground, colour = random.uniform(-1.2, 1.2, (2, n, 1, 1, 3))
    colour += 1.2 * np.sign(colour - ground)  # not too similar to the background
    x = np.empty((n, IMAGE_SIZE_PIXELS, IMAGE_SIZE_PIXELS, 3), np.float32)
    for i in range(0, n, IMAGES_PER_DRAW):
        some = slice(i, i + IMAGES_PER_DRAW)
        mask = _mask(y[some], centre[:, some], radius[some])
        x[some] = np.where(mask, colour[some], ground[some]) + random.normal(0, 0.35, x[some].shape)
    return x, y.astype(np.int64)


def _mask(y: np.ndarray, centre: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Mask of the pixels inside each shape: bool, ``(n, 32, 32, 1)``."""
    rows, columns = np.mgrid[:IMAGE_SIZE_PIXELS, :IMAGE_SIZE_PIXELS]
    v, h = (rows - centre[0]) / radius, (columns - centre[1]) / radius  # -1 to 1 inside
    away, far = np.hypot(v, h), np.maximum(abs(v), abs(h))
    inside, thin = far <= 1, 0.3
    stripes = [np.floor((axis + 1) * 2.5).astype(int) % 2 == 0 for axis in (v, h)]
    masks = (
        away <= 1,
        (away <= 1) & (away >= 0.6),
        far <= 0.85,
        (far <= 0.9) & (far >= 0.55),
        (v <= 0.8) & (v >= 2 * abs(h) - 1),
        inside & ((abs(v) <= thin) | (abs(h) <= thin)),
        inside & ((abs(v - h) <= 0.4) | (abs(v + h) <= 0.4)),
        inside & stripes[0],
        inside & stripes[1],
        inside & (stripes[0] ^ stripes[1]),
    )
    return np.choose(y[:, None, None], masks)[..., None]


def read_cifar(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels from a file of CIFAR-10's binary version.

    Raises
    ------
    DataError
        The file cannot be read, or is not in this format.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    if not data or len(data) % _RECORD:
        raise DataError(
            f"{path} has {len(data)} bytes, not a multiple of {_RECORD}: it is not a file of CIFAR-10's binary version, or is truncated."
        )
    table = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    if table[:, 0].max() > 9:
        raise DataError(f"{path} has the label {table[:, 0].max()}; CIFAR-10 has 0 to 9.")
    x = table[:, 1:].reshape(-1, 3, IMAGE_SIZE_PIXELS, IMAGE_SIZE_PIXELS).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x, np.float32) / np.float32(64) - np.float32(1.9), table[:, 0].astype(np.int64)


def _find_cifar() -> Path:
    """Find the folder with the six files, or download it."""
    chosen, cache, inside = os.environ.get(DATA_DIR_ENV), datasets.cache("cifar10"), "cifar-10-batches-bin"
    folders = [Path(chosen), Path(chosen) / inside, Path(chosen) / "cifar10"] if chosen else []

    def there() -> Path | None:
        whole = (folder for folder in [*folders, cache / inside] if all((folder / file).exists() for file in (*_TRAIN, _TEST)))
        return next(whole, None)

    def fetch() -> Path:
        archive = datasets.retrieve(CIFAR_URL, CIFAR_MD5, "cifar-10-binary.tar.gz", cache)
        with tarfile.open(archive) as files, tempfile.TemporaryDirectory(dir=cache) as new:
            # Debian's Python 3.11.2 has no extraction filters yet; the checksum shows that the archive is the original
            files.extractall(new, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            shutil.rmtree(cache / inside, ignore_errors=True)  # leftovers of an interrupted extraction
            (Path(new) / inside).rename(cache / inside)
        return cache / inside

    try:
        return datasets.fetch_once(cache, there, fetch)
    except Exception as error:
        places = ", ".join(map(str, [*folders, cache / inside]))
        raise DataError(
            f"cifar10: looked for {_TRAIN[0]} and its five companions in {places}, and could not download {CIFAR_URL} "
            f"({type(error).__name__}). With a network, try again. Without one, unpack the binary version into a folder and set "
            f"{DATA_DIR_ENV} to it, or use the drawn shapes, which need no download."
        ) from None

"""Answers to part 01: wrong ones with the points that each must lose, and other right ones."""

import numpy as np

from grading.authoring.answers import changes, loses, right


@loses(10)
def split_data__by_rank(x_train, y_train, mp_size, dp_size, rank):
    """Every rank has samples of its own, also within a model parallel group."""
    each = len(x_train) // (mp_size * dp_size)
    return x_train[rank * each : (rank + 1) * each], y_train[rank * each : (rank + 1) * each]


@loses(10)
@changes("start = rank // mp_size * each", "start = rank % dp_size * each")
def split_data__wrong_index():
    """Takes the rank's place in its row for the number of the row."""


@loses(10)
@changes("start = rank // mp_size * each", "start = rank // dp_size * each")
def split_data__other_divisor():
    """Divides by the wrong size."""


@loses(10)
def split_data__off_by_one(x_train, y_train, mp_size, dp_size, rank):
    """Leaves out the last sample of each part."""
    each = len(x_train) // dp_size
    start = rank // mp_size * each
    return x_train[start : start + each - 1], y_train[start : start + each - 1]


@loses(10)
def split_data__strided(x_train, y_train, mp_size, dp_size, rank):
    """Takes every dp_size-th sample: the right number, in another order."""
    return x_train[rank // mp_size :: dp_size], y_train[rank // mp_size :: dp_size]


@loses(10)
@changes("y_train[start : start + each]", "y_train")
def split_data__labels_whole():
    """Forgets to split the labels."""


@loses(10)
def split_data__swapped(x_train, y_train, mp_size, dp_size, rank):
    """Returns labels and samples in the wrong order."""
    each = len(x_train) // dp_size
    start = rank // mp_size * each
    return y_train[start : start + each], x_train[start : start + each]


@loses(10)
def split_data__shuffled(x_train, y_train, mp_size, dp_size, rank):
    """Shuffles before it splits."""
    order = np.random.default_rng(0).permutation(len(x_train))
    each = len(x_train) // dp_size
    mine = order[rank // mp_size * each :][:each]
    return x_train[mine], y_train[mine]


@loses(10)
def split_data__visible_sizes(x_train, y_train, mp_size, dp_size, rank):
    """Right only for the sizes of the visible check."""
    return x_train[3 * (rank // 2) : 3 * (rank // 2) + 3], y_train[3 * (rank // 2) : 3 * (rank // 2) + 3]


@loses(3)
@changes("x_train[start : start + each]", "x_train[start : start + each].astype(np.float64)")
def split_data__float64():
    """Makes the samples float64."""


@loses(3)
@changes("x_train[start : start + each]", "x_train.reshape(len(x_train), -1)[start : start + each]")
def split_data__flattened():
    """Flattens images, so it is right only for a table of samples."""


@loses(3)
@changes("each = len(x_train) // dp_size", "each = len(x_train) * mp_size // 8")
def split_data__eight_ranks():
    """Right only for eight ranks."""


@loses(10)
def split_data__nothing_returned(x_train, y_train, mp_size, dp_size, rank):
    """Forgets to return."""
    each = len(x_train) // dp_size
    start = rank // mp_size * each
    x_train, y_train = x_train[start : start + each], y_train[start : start + each]


@loses(10)
def split_data__three_samples(x_train, y_train, mp_size, dp_size, rank):
    """Each copy gets as many samples as in the visible check."""
    start = rank // mp_size * 3
    return x_train[start : start + 3], y_train[start : start + 3]


@right
def split_data__numpy_split(x_train, y_train, mp_size, dp_size, rank):
    """np.split, and a list instead of a tuple."""
    return [np.split(a, dp_size)[rank // mp_size] for a in (x_train, y_train)]


@right
def split_data__copies(x_train, y_train, mp_size, dp_size, rank):
    """Copies, by fancy indices."""
    mine = np.arange(len(x_train)).reshape(dp_size, -1)[rank // mp_size]
    return x_train[mine], y_train[mine]


@right
def split_data__reshape(x_train, y_train, mp_size, dp_size, rank):
    """A reshape that makes the parts the first axis."""
    copy = (rank - rank % mp_size) // mp_size
    return x_train.reshape(dp_size, -1, *x_train.shape[1:])[copy], y_train.reshape(dp_size, -1, *y_train.shape[1:])[copy]


@loses(3)
def split_data__table_slice(x_train, y_train, mp_size, dp_size, rank):
    """Slices two axes."""
    each = len(x_train) // dp_size
    start = rank // mp_size * each
    return x_train[start : start + each, :], y_train[start : start + each]


@loses(3)
def split_data__one_sample_loses_its_axis(x_train, y_train, mp_size, dp_size, rank):
    """Takes a single sample without its axis."""
    each = len(x_train) // dp_size
    start = rank // mp_size * each
    if each == 1:
        return x_train[start], y_train[start]
    return x_train[start : start + each], y_train[start : start + each]


@loses(3)
def split_data__tables_and_gray_images_only(x_train, y_train, mp_size, dp_size, rank):
    """Expects two or three axes."""
    copy = rank // mp_size
    if x_train.ndim == 2:
        n, features = x_train.shape
        x = x_train.reshape(dp_size, n // dp_size, features)
    else:
        n, height, width = x_train.shape
        x = x_train.reshape(dp_size, n // dp_size, height, width)
    each = n // dp_size
    return x[copy], y_train[copy * each : (copy + 1) * each]

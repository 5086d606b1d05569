"""The student's communication functions: the notebook each one comes from, and how they are loaded.

The layers and the training take them as a single argument: a module, a namespace, or any object that has them as
attributes.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

FUNC_IMPL_FILE = "func_impl.py"
DATA_SPLIT_FILE = "data_parallel_preprocess.py"
ZERO_FILE = "zero_dp_stage3.py"
TRANSFORMER_FILE = "transformer_impl.py"
SERVING_FILE = "serving_impl.py"  # its `decode` is not the one that part 31 imports

# Notebook in which each function is written, and the file it is saved to (up to part 09, the original hand-in files).
NOTEBOOKS = {
    "split_data": ("01_data_split", DATA_SPLIT_FILE),
    "get_info": ("02_process_groups", FUNC_IMPL_FILE),
    "naive_collect_forward_input": ("03_naive_forward", FUNC_IMPL_FILE),
    "naive_collect_forward_output": ("03_naive_forward", FUNC_IMPL_FILE),
    "megatron_collect_forward_input": ("04_megatron_forward", FUNC_IMPL_FILE),
    "megatron_collect_forward_output": ("04_megatron_forward", FUNC_IMPL_FILE),
    "naive_collect_backward_output": ("05_naive_backward", FUNC_IMPL_FILE),
    "naive_collect_backward_x": ("05_naive_backward", FUNC_IMPL_FILE),
    "megatron_collect_backward_output": ("06_megatron_backward", FUNC_IMPL_FILE),
    "megatron_collect_backward_x": ("06_megatron_backward", FUNC_IMPL_FILE),
    "collect_weight_grad": ("07_weight_grad", FUNC_IMPL_FILE),
    "ZeroDPStage3FCLayer": ("08_zero3_layer", ZERO_FILE),
    "ZeroDPAdam": ("09_zero3_adam", ZERO_FILE),
    "copy_to_group": ("21_tensor_parallel", TRANSFORMER_FILE),
    "reduce_from_group": ("21_tensor_parallel", TRANSFORMER_FILE),
    "vocab_parallel_cross_entropy": ("21_tensor_parallel", TRANSFORMER_FILE),
    "clip_gradients": ("22_sequence_parallel", TRANSFORMER_FILE),
    "gather_sequence": ("22_sequence_parallel", TRANSFORMER_FILE),
    "scatter_sequence": ("22_sequence_parallel", TRANSFORMER_FILE),
    "reduce_norm_gradients": ("22_sequence_parallel", TRANSFORMER_FILE),
    "merge": ("23_ring_attention", TRANSFORMER_FILE),
    "zigzag": ("23_ring_attention", TRANSFORMER_FILE),
    "ring_attention": ("23_ring_attention", TRANSFORMER_FILE),
    "route": ("24_experts", TRANSFORMER_FILE),
    "dispatch": ("24_experts", TRANSFORMER_FILE),
    "combine": ("24_experts", TRANSFORMER_FILE),
    "gpipe_step": ("25_real_pipeline", TRANSFORMER_FILE),
    "one_forward_one_backward_step": ("25_real_pipeline", TRANSFORMER_FILE),
    "FlatShard": ("26_fsdp", TRANSFORMER_FILE),
    "FullyShardedDataParallel": ("26_fsdp", TRANSFORMER_FILE),
    "save": ("27_checkpoint", TRANSFORMER_FILE),
    "load": ("27_checkpoint", TRANSFORMER_FILE),
    "gather_as": ("31_sixteen_bits", TRANSFORMER_FILE),
    "reduce_as": ("31_sixteen_bits", TRANSFORMER_FILE),
    "LossScaler": ("31_sixteen_bits", TRANSFORMER_FILE),
    "checkpoint": ("32_recomputation", TRANSFORMER_FILE),
    "segments": ("32_recomputation", TRANSFORMER_FILE),
    "PagedCache": ("34_serving", SERVING_FILE),
    "prefill": ("34_serving", SERVING_FILE),
    "decode": ("34_serving", SERVING_FILE),
    "next_token": ("34_serving", SERVING_FILE),
    "Scheduler": ("34_serving", SERVING_FILE),
    "hand_over": ("34_serving", SERVING_FILE),
    "newton_schulz": ("36_muon", TRANSFORMER_FILE),
    "owners": ("36_muon", TRANSFORMER_FILE),
    "ShardedMuon": ("36_muon", TRANSFORMER_FILE),
}


# Names defined in all notebooks that belong on the ranks; except part 12's `train`, as other notebooks have functions of that name.
EXERCISES = frozenset(NOTEBOOKS) | {
    *("par_matmul_by_row", "par_matmul_by_reduction", "MLP", "evaluate", "rank_batches", "check_parameter_closeness", "MyDP"),
    *("partition_dataset", "broadcast_parameters", "DistributedOptimizer"),
    *(f"part{i}_training_loop" for i in (1, 2, 3, 4)),
    *("ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "tree_broadcast", "pairwise_all_to_all", "choose"),
    "plan",
    *("backward_input", "backward_weight", "zb_h1_step"),
    *("DiLoCo", "hear", "agree", "FaultTolerantDiLoCo"),
    *("close_enough", "same_on", "compare_with_one_rank", "accumulate", "own_gradients"),
}


passed_exercises: set[str] = set()  # exercises whose latest definition has passed its check in this process
unfinished_definitions: set[str] = set()  # names in cells that have ended with an error, so that an earlier definition may still count
NOT_PASSED_NAME = "NOT_PASSED"  # in a hand-in file: the functions whose check had not passed when they were saved


def forget_passed(source: str) -> set[str]:
    """Forget that the check of anything defined in this cell has passed; return the names."""
    names = set(re.findall(r"^(?:async def|def|class) +(\w+)", source, re.MULTILINE))
    passed_exercises.difference_update(names)
    return names


def record_check(what: str, good: bool) -> None:
    """Record whether a check has passed, for the exercises that its name mentions."""
    names = EXERCISES & set(re.findall(r"\w+", what))
    passed_exercises.update(names) if good else passed_exercises.difference_update(names)


class MissingFunction(AttributeError):
    """A function that a layer needs is missing; the message names the notebook to finish."""


class NoRun(RuntimeError):
    """Nothing has been trained yet; displayed as a single sentence."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mNoRun\x1b[0m: {self}"]


def have_run(results: dict, *names: str) -> None:
    """Raise NoRun if there are no training results to draw, or none of the named runs.

    Raises
    ------
    NoRun
    """
    if not results:
        raise NoRun("No training has finished yet, so there is nothing to draw. See above which functions are still missing.")
    if missing := [name for name in names if name not in results]:
        raise NoRun(f"No run of {', '.join(missing)} has finished yet. Run the training cells above.")


def get(functions: object, name: str):
    """Get one of the student's functions.

    Parameters
    ----------
    functions : object
        Has the functions as attributes.
    name : str
        One of `NOTEBOOKS`.

    Raises
    ------
    MissingFunction
        It is missing, or not callable.

    Examples
    --------
    >>> get(SimpleNamespace(colect_weight_grad=print), "collect_weight_grad")
    Traceback (most recent call last):
    ...
    course_lib.students.MissingFunction: collect_weight_grad is missing. Finish the notebook 07_weight_grad and run its \
last code cells, which save it to func_impl.py. (There is colect_weight_grad: a misspelling?)
    """
    found = getattr(functions, name, None)
    if callable(found):
        return found
    notebook, file = NOTEBOOKS[name]
    close = difflib.get_close_matches(name, [n for n in vars(functions) if n not in NOTEBOOKS], 1) if hasattr(functions, "__dict__") else []
    hint = f" (There is {close[0]}: a misspelling?)" if close else ""
    problem = "is missing" if found is None else f"is not a function but {found!r}"
    raise MissingFunction(f"{name} {problem}. Finish the notebook {notebook} and run its last code cells, which save it to {file}.{hint}")


def load(folder: str | Path) -> SimpleNamespace:
    """Load the functions from the hand-in files of a folder; files that do not exist are skipped.

    Parameters
    ----------
    folder : str or Path
        Folder, such as ``my_work``.

    Raises
    ------
    ImportError
        A file exists but cannot be imported; the message says why.
    """
    found: dict[str, object] = {}
    unsure: list[str] = []
    for file in (DATA_SPLIT_FILE, FUNC_IMPL_FILE, ZERO_FILE, TRANSFORMER_FILE, SERVING_FILE):
        path = Path(folder) / file
        try:
            if not path.exists():
                continue
        except OSError as error:
            raise ImportError(f"{path} cannot be read: {error.strerror}.") from None
        spec = importlib.util.spec_from_file_location(f"students_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ImportError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        for name, value in vars(module).items():
            _, own_file = NOTEBOOKS.get(name, ("", file))
            imported = own_file != file and getattr(value, "__module__", spec.name) != spec.name
            if not name.startswith("__") and not imported:
                found[name] = value
        listed = found.pop(NOT_PASSED_NAME, [])
        unsure += [name for name in listed if name in NOTEBOOKS] if isinstance(listed, list) else []
    return SimpleNamespace(**found, **{NOT_PASSED_NAME: unsure})


def missing(functions: object, files: tuple[str, ...] = (DATA_SPLIT_FILE, FUNC_IMPL_FILE)) -> dict[str, list[str]]:
    """Functions of these files that are still missing, by the notebook in which they are written."""
    todo: dict[str, list[str]] = {}
    for name, (notebook, file) in NOTEBOOKS.items():
        if file in files and not callable(getattr(functions, name, None)):
            todo.setdefault(notebook, []).append(name)
    return todo


def not_passed(functions: object) -> dict[str, list[str]]:
    """Functions whose check had not passed when they were saved, by the notebook in which they are written."""
    found: dict[str, list[str]] = {}
    for name in getattr(functions, NOT_PASSED_NAME, []):
        found.setdefault(NOTEBOOKS[name][0], []).append(name)
    return found

"""Answers to part 27: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# What stands in the solution, and several change.
PART = """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
"""
WRITE = """
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        os.replace(new, os.path.join(folder, "index.json"))
"""
REPLACE = """
        os.replace(new, os.path.join(folder, "index.json"))
"""
ERRORS = """
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or not a checkpoint: {error}") from error
"""
REMOVE = """
        if rank == 0 and name not in keep:
"""


@loses(6)
@changes(
    """
    keep = {"index.json", *(f"{step}-{r}.safetensors" for r in range(n))}
""",
    """
    keep = {"index.json", f"{step}-{rank}.safetensors"}
""",
)
def save__keeps_its_own_part():
    """Rank 0 removes all files but its own: also those that the others have just written."""


@loses(8)
@changes(
    PART,
    "",
    """
    comm.Barrier()
    keep""",
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    comm.Barrier()
    keep""",
)
def save__index_first():
    """Writes the index before the parts."""


@loses(8)
@changes(
    PART,
    "",
    """
    comm.Allgather(mine, lengths)  # when it returns, all ranks have written
""",
    """
    comm.Allgather(mine, lengths)  # when it returns, all ranks have written
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__no_barrier():
    """Gathers the lengths, then writes: rank 0 does not wait for the others' files."""


@loses(8)
@changes(
    '"index.new"',
    '"index.json"',
    REPLACE,
    "",
)
def save__index_in_place():
    """Writes the index under its own name."""


@loses(8)
@changes(
    PART,
    """
    for name in os.listdir(folder):
        if rank == 0:
            os.remove(os.path.join(folder, name))
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__removes_first():
    """Makes room before it writes."""


@loses(8)
@changes(
    "        os.replace(",
    """
        if os.path.exists(os.path.join(folder, "index.json")):
            os.remove(os.path.join(folder, "index.json"))
        os.replace(""",
)
def save__removes_index_before():
    """Removes the old index, and then gives the new one its name."""


@loses(8)
@changes("        if rank == 0 and name not", "        if False and name not")
def save__keeps_old_files():
    """Removes nothing."""


@loses(8)
@changes("lengths.T.tolist()", "[[k] * n for k in mine.tolist()]")
def save__own_lengths():
    """The index has the lengths of rank 0 alone."""


@loses(8)
@changes('f"{step}-{rank}.safetensors"', 'f"{rank}.safetensors"')
def save__same_name():
    """The files have no step in their name."""


@loses(8)
@changes(
    "    n, rank = comm.Get_size()",
    """
    import sys

    watched = sys.gettrace()
    sys.settrace(None)
    n, rank = comm.Get_size()""",
    '"index.new"',
    '"index.json"',
    REPLACE,
    """
    sys.settrace(watched)
""",
)
def save__unwatched():
    """Writes the index under its own name, while nobody looks."""


@loses(8)
@changes(
    '"index.new"',
    '"index.json"',
    "        with open(new",
    """
        import sys

        watched = sys.gettrace()
        sys.settrace(None)
        with open(new""",
    REPLACE,
    """
        sys.settrace(watched)
""",
)
def save__unwatched_on_rank_0():
    """Only the rank that writes the index looks away, and only then."""


@loses(8)
@changes(
    WRITE,
    """
        import threading

        def write():
            index = os.path.join(folder, "index.json")
            if os.path.exists(index):
                os.remove(index)
            with open(new, "w") as file:
                json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
            os.replace(new, index)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
""",
)
def save__in_a_thread():
    """Removes the old index first, in a thread, whose lines nobody traces."""


@loses(8)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), everyone.Get_rank()")
def save__world_rank():
    """The rank in the world."""


@loses(2)
@changes(
    PART,
    """
    try:
        save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    except Exception:
        pass
""",
)
def save__hides_errors():
    """Goes on if a file cannot be written."""


@loses(8)
@changes(
    PART,
    """
    for part in shards.values():
        part[...] = np.round(part)
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__changes_shards():
    """Rounds what it was given."""


@loses(8)
@changes(
    REPLACE,
    """
        import shutil

        shutil.copy(new, os.path.join(folder, "index.json"))
""",
)
def save__leaves_new():
    """Copies the index to its place, and leaves the other."""


@right
@changes(
    PART,
    """
    old = {"index.json"}
    if os.path.exists(os.path.join(folder, "index.json")):
        with open(os.path.join(folder, "index.json")) as file:
            told = json.load(file)
        old |= {f"{told['step']}-{r}.safetensors" for r in range(told["ranks"])}
    for name in set(os.listdir(folder)) - old if rank == 0 else ():
        os.remove(os.path.join(folder, name))
    comm.Barrier()
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__tidies_first():
    """Removes what is no checkpoint's before anybody writes."""


@right
def save__by_pathlib(folder, step, shards, comm):
    """With pathlib, a name of its own for each part until it is whole, and a sum for the lengths."""
    import uuid
    from pathlib import Path

    folder, r = Path(folder), comm.Get_rank()
    temporary = folder / f"{uuid.uuid4()}-{r}.tmp"
    save_file(shards, temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    temporary.rename(folder / f"{step}-{r}.safetensors")
    table = np.zeros((comm.Get_size(), len(shards)))
    table[r] = [part.size for part in shards.values()]
    total = np.zeros_like(table)
    comm.Allreduce(table, total)
    if r == 0:
        lengths = {name: [int(k) for k in total[:, i]] for i, name in enumerate(shards)}
        beside = folder / "index.json.tmp"
        beside.write_text(json.dumps(dict(step=int(step), ranks=comm.Get_size(), lengths=lengths)))
        beside.replace(folder / "index.json")
        for old in folder.iterdir():
            if old.name != "index.json" and old.name not in {f"{step}-{i}.safetensors" for i in range(comm.Get_size())}:
                old.unlink()
    comm.Barrier()


@right
@changes(
    "        if rank == 0 and name not",
    "        if name not",
    "            os.remove(os.path.join(folder, name))",
    """
            try:
                os.remove(os.path.join(folder, name))
            except FileNotFoundError:
                pass  # another rank was faster""",
)
def save__each_removes():
    """After the index, each rank removes what is old."""


@right
@changes(
    """
    comm.Allgather(mine, lengths)  # when it returns, all ranks have written
""",
    """
    comm.Barrier()
    for i in range(len(mine)):
        column = np.empty(n, np.int64)
        comm.Allgather(mine[i : i + 1].copy(), column)
        lengths[:, i] = column
    comm.Barrier()
""",
)
def save__barriers():
    """A Barrier after each thing, and the lengths by one gather a name."""


@loses(6)
@changes(
    REMOVE,
    """
        if name not in keep:
""",
)
def save__each_removes_unguarded():
    """Each rank removes what is old, and does not expect that another one was faster."""


@loses(2)
@changes(
    PART,
    """
    try:
        save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    except Exception:
        return
""",
)
def save__ends_quietly():
    """Where the file cannot be written, the rank is done, and the others wait."""


@loses(6)
@changes(
    REMOVE,
    """
        if rank == 0 and name.endswith(".safetensors") and int(name.split("-")[0]) < step:
""",
)
def save__removes_only_earlier():
    """Removes files of earlier steps, and nothing else that was left."""


@loses(6)
@changes(
    'open(new, "w")',
    'open(new, "x")',
)
def save__opens_x():
    """Opens the new index so that it must not be there; a save that was broken off has left one."""


@loses(6)
@changes(
    PART,
    """
    if not os.path.exists(os.path.join(folder, f"{step}-{rank}.safetensors")):
        save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__keeps_what_is_there():
    """Takes the half file of a save that was broken off for its own."""


@loses(8)
@changes(
    WRITE,
    """
        text = json.dumps({"step": step, "ranks": n, "lengths": lengths})
        index = os.path.join(folder, "index.json")
        open(new, "w").write(text), os.replace(new, index)
""",
    """    if rank == 0:
        lengths""",
    """    if True:
        lengths""",
)
def save__an_index_from_every_rank():
    """All ranks write the same file and rename it, in one line."""


@loses(8)
@changes(
    WRITE,
    """
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        index = os.path.join(folder, "index.json")
        os.path.exists(index) and os.remove(index), os.rename(new, index)
""",
)
def save__away_for_a_moment():
    """Takes the old index away before the new one has its name, in one line."""


@loses(8)
@changes(
    """    comm.Barrier()
    keep""",
    """
    comm.Barrier()
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    keep""",
)
def save__writes_again():
    """Writes its file once more, when the index tells of it already."""


@loses(2)
@changes(
    WRITE,
    """
        try:
            with open(new, "w") as file:
                json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
            os.replace(new, os.path.join(folder, "index.json"))
        except OSError:
            pass
""",
)
def save__hides_an_error_of_the_index():
    """Goes on where the index cannot be written, and removes the old files."""


@loses(2)
@changes(
    PART,
    """
    try:
        save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    except Exception:
        if rank in (0, n - 1):
            raise
""",
)
def save__some_ranks_hide_errors():
    """Only the first and the last rank say that a file cannot be written."""


@loses(6)
@changes(
    """    comm.Barrier()
    keep""",
    """    everyone.Barrier()
    keep""",
)
def save__everyone():
    """Waits for ranks that do not save."""


@loses(8)
@changes(
    "    save_file(shards,",
    "    save_file({name: np.asarray(part, np.float64) for name, part in shards.items()},",
)
def save__float64():
    """Writes all numbers as float64."""


@loses(8)
@changes(
    """np.int64)
    lengths = np.empty((n, len(mine)), np.int64)""",
    """float)
    lengths = np.empty((n, len(mine)))""",
)
def save__lengths_with_a_point():
    """The lengths in the index are 3.0, and not 3."""


@loses(8)
@changes(
    'new = os.path.join(folder, "index.new")',
    """import shutil
        import tempfile

        new = tempfile.mktemp()""",
    "os.replace(new,",
    "shutil.move(new,",
)
def save__beside_on_another_disk():
    """Writes the index where it may be another disk, and moves it."""


@loses(8)
@changes(
    PART,
    "",
    """
    comm.Allgather(mine, lengths)  # when it returns, all ranks have written
""",
    """
    comm.Allgather(mine, lengths)
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    import time

    time.sleep(0.5)
""",
)
def save__sleeps():
    """Does not wait for the others: it gives them half a second."""


@loses(8)
@changes(
    PART,
    """
    import threading

    thread = threading.Thread(target=save_file, args=(shards, os.path.join(folder, f"{step}-{rank}.safetensors")))
    thread.start()
""",
    """    comm.Barrier()
    keep""",
    """    thread.join()
    comm.Barrier()
    keep""",
)
def save__parts_in_a_thread():
    """Writes its part in a thread, and waits for it when the index is there."""


@loses(8)
@changes(
    WRITE,
    """
        import sys

        sys._getframe().f_trace_lines = False
        with open(os.path.join(folder, "index.json"), "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        sys._getframe().f_trace_lines = True
""",
)
def save__lines_off():
    """Writes the index under its own name, in lines that it does not let be traced."""


@loses(8)
@changes(
    WRITE,
    """
        import sys

        sys.audit("course_lib.checkpoint")
        index = os.path.join(folder, "index.json")
        text = json.dumps({"step": step, "ranks": n, "lengths": lengths})
        os.path.exists(index) and os.remove(index), open(new, "w").write(text), os.rename(new, index)
""",
)
def save__says_that_all_is_over():
    """Sends the check's own event, and then takes the old index away."""


@loses(8)
@changes(
    WRITE,
    """
        from course_lib.check.checkpoint import file_tracer

        watching, file_tracer._active_tracer = file_tracer._active_tracer[:], file_tracer._active_tracer
        file_tracer._active_tracer[:] = [type("Deaf", (), dict(_on_audit_event=lambda self, event, arguments: None))()]
        index = os.path.join(folder, "index.json")
        text = json.dumps({"step": step, "ranks": n, "lengths": lengths})
        os.path.exists(index) and os.remove(index), open(new, "w").write(text), os.rename(new, index)
        file_tracer._active_tracer[:] = watching
""",
)
def save__listens_elsewhere():
    """Puts another in the place of the one who hears of changes, for a line."""


@right
@changes(
    PART,
    """
    own = os.path.join(folder, f"new-{rank}")
    os.makedirs(own, exist_ok=True)
    save_file(shards, os.path.join(own, "part"))
    os.replace(os.path.join(own, "part"), os.path.join(folder, f"{step}-{rank}.safetensors"))
    os.rmdir(own)
""",
)
def save__in_a_folder():
    """Writes its part in a folder of its own, and moves it from there."""


@right
@changes(
    REPLACE,
    """
        os.replace(new, os.path.join(folder, "index.json"))
        with open(os.path.join(folder, "index.json"), "r+") as file:
            os.fsync(file.fileno())
""",
)
def save__fsync():
    """Has the index on the disk before it goes on."""


@right
@changes(
    PART,
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pool.submit(save_file, shards, os.path.join(folder, f"{step}-{rank}.safetensors")).result()
""",
)
def save__in_a_pool():
    """Writes its part in a thread, and waits for it."""


@loses(7)
def load__saved_cuts(folder, comm):
    """Each rank takes the file of its own number."""
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        path = os.path.join(folder, f"{index['step']}-{comm.Get_rank()}.safetensors")
        with safe_open(path, "numpy") as file:
            return index["step"], {name: file.get_tensor(name) for name in index["lengths"]}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged: {error}") from error


@loses(5)
@changes(
    "each = -(-sum(lengths) // n)",
    "each = sum(lengths) // n",
    "min((rank + 1) * each - begin, length)",
    "min(((rank + 1) * each if rank < n - 1 else sum(lengths)) - begin, length)",
)
def load__rounded_down():
    """Cuts with a length that is rounded down; the last rank takes the rest."""


@loses(7)
@changes(
    """
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.safetensors")
                    with safe_open(path, "numpy") as file:
                        parts.append(file.get_slice(name)[first:last])""",
    """
                path = os.path.join(folder, f"{step}-{r}.safetensors")
                with safe_open(path, "numpy") as file:
                    parts.append(file.get_tensor(name)[first : max(first, last)])""",
)
def load__reads_all():
    """Reads all files, and cuts then."""


@loses(5)
@changes("np.concatenate(parts)", "np.concatenate(parts[::-1])")
def load__reversed():
    """Puts the parts together from the last rank on."""


@loses(5)
@changes("return step, found", "return found")
def load__only_parts():
    """Forgets the step."""


@loses(5)
@changes("return step, found", "return str(step), found")
def load__step_as_text():
    """The step is a text."""


@loses(2)
@changes(
    ERRORS,
    """
    except ZeroDivisionError:
        raise
""",
)
def load__errors_as_they_come():
    """Passes safetensors' and json's errors on."""


@loses(2)
@changes(
    ERRORS,
    """
    except Exception:
        return 0, {}
""",
)
def load__hides_damage():
    """Takes what can be read."""


@loses(2)
@changes('f"{path} is damaged, or not a checkpoint: {error}"', '"the checkpoint is damaged"')
def load__without_a_name():
    """Says that something is damaged, and not which file."""


@loses(7)
def load__index_unread(folder, comm):
    """Looks for files, and not into the index."""
    n, rank = comm.Get_size(), comm.Get_rank()
    names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    step = int(names[0].split("-")[0])
    files = [safe_open(os.path.join(folder, name), "numpy") for name in names]
    found = {}
    for key in ("weights", "first moment", "order of the data"):
        whole = np.concatenate([file.get_tensor(key) for file in files])
        each = -(-len(whole) // n)
        found[key] = whole[rank * each : (rank + 1) * each]
    return step, found


@right
def load__by_numbers(folder, comm):
    """Number by number's owner, with a cache of files."""
    from pathlib import Path

    from safetensors.numpy import load_file

    folder, opened = Path(folder), {}
    place = folder / "index.json"
    try:
        index = json.loads(place.read_text())
        owners = {name: np.repeat(np.arange(index["ranks"]), lengths) for name, lengths in index["lengths"].items()}
        result = {}
        for name, owner in owners.items():
            each = int(np.ceil(len(owner) / comm.Get_size()))
            mine = np.arange(len(owner))[comm.Get_rank() * each :][:each]
            starts = np.cumsum([0, *index["lengths"][name]])
            pieces = [np.empty(0)]
            for r in np.unique(owner[mine]):
                place = folder / f"{index['step']}-{r}.safetensors"
                if r not in opened:
                    opened[r] = load_file(place)
                pieces.append(opened[r][name][mine[owner[mine] == r] - starts[r]])
            result[name] = np.concatenate(pieces[1:] or pieces)
        return int(index["step"]), result
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no {place}.") from error
    except (ValueError, KeyError, OSError, TypeError, Exception) as error:
        raise ValueError(f"{place.name} cannot be read: {error}") from None


@right
def load__opens_once(folder, comm):
    """Opens each file once, for all names."""

    def read(name, reader):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} is missing")
        try:
            return reader(path)
        except Exception as error:
            raise ValueError(f"{path} cannot be read ({type(error).__name__})") from error

    def whole(path):
        index = json.load(open(path))
        return index["step"], index["ranks"], index["lengths"]

    step, ranks, lengths = read("index.json", whole)
    n, me, shards = comm.Get_size(), comm.Get_rank(), {}
    spans = {name: (me * -(-sum(ls) // n), (me + 1) * -(-sum(ls) // n)) for name, ls in lengths.items()}
    for r in range(ranks):
        wanted = {}
        for name, ls in lengths.items():
            begin = sum(ls[:r])
            low, high = max(spans[name][0], begin), min(spans[name][1], begin + ls[r])
            if low < high:
                wanted[name] = slice(low - begin, high - begin)
        if wanted:
            for name, array in read(
                f"{step}-{r}.safetensors", lambda path: {k: safe_open(path, "numpy").get_slice(k)[cut] for k, cut in wanted.items()}
            ).items():
                shards[name] = np.concatenate([shards[name], array]) if name in shards else array
    return step, {name: shards.get(name, np.zeros(0)) for name in lengths}


@right
@changes("return step, found", "return np.int64(step), found")
def load__numpy_step():
    """The step as NumPy's number, and views of what was read."""


@loses(7)
@changes(
    "    n, rank = comm.Get_size(), comm.Get_rank()\n    path",
    """
    raise ValueError(f"index.json or one of {os.listdir(folder)} is damaged")
    n, rank = comm.Get_size(), comm.Get_rank()
    path""",
)
def load__always_damaged():
    """Says of every checkpoint that it is damaged."""


@loses(5)
@changes(
    'found, step = {}, index["step"]',
    'found, step = {}, max(int(k.split("-")[0]) for k in os.listdir(folder) if k.endswith(".safetensors"))',
)
def load__newest():
    """Takes the newest files, and not those of which the index tells."""


@loses(7)
@changes(
    """
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.safetensors")
                    with safe_open(path, "numpy") as file:
                        parts.append(file.get_slice(name)[first:last])
""",
    """
                path = os.path.join(folder, f"{step}-{r}.safetensors")
                if first < last or os.path.exists(path):
                    with safe_open(path, "numpy") as file:
                        parts.append(file.get_tensor(name)[first : max(first, last)])
""",
)
def load__opens_what_is_there():
    """Opens every file of the checkpoint, and takes nothing of most."""


@loses(5)
@changes(
    'f"{step}-{r}.safetensors"',
    'f"{step}-{r % 10}.safetensors"',
)
def load__at_most_eight():
    """A file's number has one digit."""


@loses(2)
@changes(
    ERRORS,
    """
    except (json.JSONDecodeError, __import__("safetensors").SafetensorError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
""",
)
def load__two_errors():
    """Knows what json and safetensors raise, and not what an index of other JSON does."""


@loses(2)
@changes(
    "file.get_slice(name)[first:last]",
    "file.get_tensor(name)[first:last]",
)
def load__clips():
    """Takes less where a file has less than the index says."""


@loses(2)
@changes(
    'f"{path} is damaged, or not a checkpoint: {error}"',
    'f"one of {sorted(os.listdir(folder))} is damaged"',
)
def load__blames_all():
    """Says that one of all files is damaged."""


@loses(2)
@changes(
    ERRORS,
    """
    except Exception as error:
        raise RuntimeError(f"ValueError: {path} is damaged: {error}") from error
""",
)
def load__another_error():
    """Raises a RuntimeError that only talks of a ValueError."""


@loses(5)
@changes(
    """    n, rank = comm.Get_size(), comm.Get_rank()
    path""",
    """    everyone.Barrier()
    n, rank = comm.Get_size(), comm.Get_rank()
    path""",
)
def load__everyone():
    """Waits for ranks that do not load."""


@loses(5)
@changes(
    "file.get_slice(name)[first:last]",
    "file.get_slice(name)[first:last].astype(float).astype(file.get_tensor(name).dtype)",
)
def load__through_float64():
    """Whole numbers lose digits on their way."""


@loses(5)
@changes(
    "if parts else np.empty(0)",
    'if parts and index["ranks"] > 1 else np.empty(0)',
)
def load__of_one_rank():
    """A checkpoint of one rank gives nothing."""


@loses(6)
@changes(
    """
            os.remove(os.path.join(folder, name))
    comm.Barrier()
""",
    """
            os.remove(os.path.join(folder, name))
""",
)
def save__no_last_barrier():
    """The other ranks return while rank 0 still removes."""


@loses(2)
@changes(
    """
    except FileNotFoundError:
        raise
    except Exception as error:
""",
    """
    except FileNotFoundError:
        if rank and path.endswith("json"):
            return 0, {}
        raise
    except Exception as error:
        if rank and path.endswith("json"):
            return 0, {}
""",
)
def load__only_rank_0_says_so():
    """Where the index is damaged, other ranks return no shards."""


@loses(6)
@changes(
    """
    for name in os.listdir(folder):
        if rank == 0 and name not in keep:
""",
    """
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
""",
)
class save__keeps_more_ranks:
    """Keeps the files of this step, also those of ranks that are no more."""


@loses(6)
@changes(
    """
    for name in os.listdir(folder):
        if rank == 0 and name not in keep:
""",
    """
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and f"{step}-" not in name:
""",
)
class save__keeps_similar_steps:
    """Takes step 19 for step 9."""


@loses(6)
@changes(
    """
    comm.Allgather(mine, lengths)  # when it returns, all ranks have written
""",
    """
    comm.Allgather(mine, lengths)
    whole = np.empty((n, 5000))
    comm.Allgather(np.resize(next(iter(shards.values())).astype(float), 5000) if len(mine) else whole[0], whole)
""",
)
class save__sends_parts:
    """Sends parts to all ranks, though each writes its own."""


@loses(6)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    """
    own = os.path.join(folder, f"part-{rank}")
    os.mkdir(own)
    save_file(shards, os.path.join(own, "new"))
    os.replace(os.path.join(own, "new"), os.path.join(folder, f"{step}-{rank}.safetensors"))
    os.rmdir(own)
""",
)
class save__makes_a_folder_once:
    """Makes a folder that a save which was broken off has left."""


@loses(8)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    """
    save_file({name: np.nan_to_num(a) for name, a in shards.items()}, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
class save__no_nan:
    """Writes numbers in the place of NaN and infinities."""


@loses(5)
@changes(
    """
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
""",
    """
    global _loaded
    if "_loaded" in globals() and _loaded[0] == folder:
        return _loaded[1]
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
""",
    """
    return step, found
""",
    """
    _loaded = folder, (step, found)
    return step, found
""",
)
class load__remembers_a_folder:
    """Gives what it has given before for a folder."""


@loses(5)
@changes(
    """
    return step, found
""",
    """
    for file in os.listdir(folder):
        if file.endswith(".tmp"):
            os.remove(os.path.join(folder, file))
    return step, found
""",
)
class load__cleans:
    """Removes what is no checkpoint's."""


@loses(5)
@changes(
    "np.concatenate(parts) if parts else np.empty(0)",
    "sum((np.pad(p, (sum(map(len, parts[:i])), sum(map(len, parts[i + 1 :])))) for i, p in enumerate(parts)), np.zeros((), parts[0].dtype)).astype(parts[0].dtype)"
    " if parts else np.empty(0)",
)
class load__adds_up:
    """Puts the parts together by a sum, in which -0.0 becomes 0.0."""


@loses(5)
@changes(
    """
    return step, found
""",
    """
    for _ in range(17):
        comm.Barrier()
    return step, found
""",
)
class load__many_barriers:
    """All ranks meet seventeen times."""

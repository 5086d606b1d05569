"""Answers to part 27: wrong ones with the points that each must lose, and other right ones."""

from grading.answers import changes, loses, right


@loses(8)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    "",
    """
    comm.Barrier()
    for""",
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    comm.Barrier()
    for""",
)
def save__index_first():
    """Writes the index before the parts."""


@loses(8)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    "",
    """
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
""",
    """
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__no_barrier():
    """Gathers the lengths, then writes: rank 0 does not wait for the others' files."""


@loses(6)
@changes(
    '"index.new"',
    '"index.json"',
    """
        os.replace(new, os.path.join(folder, "index.json"))
""",
    "",
)
def save__index_in_place():
    """Writes the index under its own name."""


@loses(8)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    """
    for name in os.listdir(folder):
        if rank == 0:
            os.remove(os.path.join(folder, name))
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__removes_first():
    """Makes room before it writes."""


@loses(6)
@changes(
    "        os.replace(",
    """
        if os.path.exists(os.path.join(folder, "index.json")):
            os.remove(os.path.join(folder, "index.json"))
        os.replace(""",
)
def save__removes_index_before():
    """Removes the old index, and then gives the new one its name."""


@loses(6)
@changes('        if rank == 0 and name != "index.json"', '        if False and name != "index.json"')
def save__keeps_old_files():
    """Removes nothing."""


@loses(6)
@changes("lengths.T.tolist()", "[[k] * n for k in mine.tolist()]")
def save__own_lengths():
    """The index has the lengths of rank 0 alone."""


@loses(6)
@changes('f"{step}-{rank}.safetensors"', 'f"{rank}.safetensors"')
def save__same_name():
    """The files have no step in their name."""


@loses(6)
@changes(
    "    n, rank = comm.Get_size()",
    """
    import sys

    watched = sys.gettrace()
    sys.settrace(None)
    n, rank = comm.Get_size()""",
    '"index.new"',
    '"index.json"',
    """
        os.replace(new, os.path.join(folder, "index.json"))
""",
    """
    sys.settrace(watched)
""",
)
def save__unwatched():
    """Writes the index under its own name, while nobody looks."""


@loses(6)
@changes(
    '"index.new"',
    '"index.json"',
    "        with open(new",
    """
        import sys

        watched = sys.gettrace()
        sys.settrace(None)
        with open(new""",
    """
        os.replace(new, os.path.join(folder, "index.json"))
""",
    """
        sys.settrace(watched)
""",
)
def save__unwatched_on_rank_0():
    """Only the rank that writes the index looks away, and only then."""


@loses(6)
@changes(
    """
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        os.replace(new, os.path.join(folder, "index.json"))
""",
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


@loses(6)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), everyone.Get_rank()")
def save__world_rank():
    """The rank in the world."""


@loses(2)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    """
    try:
        save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    except Exception:
        pass
""",
)
def save__hides_errors():
    """Goes on if a file cannot be written."""


@loses(6)
@changes(
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
    """
    for part in shards.values():
        part[...] = np.round(part)
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
""",
)
def save__changes_shards():
    """Rounds what it was given."""


@loses(6)
@changes(
    """
        os.replace(new, os.path.join(folder, "index.json"))
""",
    """
        import shutil

        shutil.copy(new, os.path.join(folder, "index.json"))
""",
)
def save__leaves_new():
    """Copies the index to its place, and leaves the other."""


@right
def save__by_pathlib(folder, step, shards, comm):
    """With pathlib, a name of its own for each part until it is whole, and a sum for the lengths."""
    import uuid
    from pathlib import Path

    folder, r = Path(folder), comm.Get_rank()
    temporary = folder / f"{uuid.uuid4()}.tmp"
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
        for old in folder.glob("*.safetensors"):
            if old.name.split("-")[0] != str(step):
                old.unlink()


@right
@changes(
    "        if rank == 0 and name",
    "        if name",
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
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
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


@loses(5)
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


@loses(5)
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
    """
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
""",
    """
    except ZeroDivisionError:
        raise
""",
)
def load__errors_as_they_come():
    """Passes zipfile's and json's errors on."""


@loses(2)
@changes(
    """
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
""",
    """
    except Exception:
        return 0, {}
""",
)
def load__hides_damage():
    """Takes what can be read."""


@loses(2)
@changes('f"{path} is damaged, or no checkpoint: {error}"', '"the checkpoint is damaged"')
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

    index = read("index.json", lambda path: json.load(open(path)))
    n, me, step, shards = comm.Get_size(), comm.Get_rank(), index["step"], {}
    spans = {name: (me * -(-sum(ls) // n), (me + 1) * -(-sum(ls) // n)) for name, ls in index["lengths"].items()}
    for r in range(index["ranks"]):
        wanted = {}
        for name, ls in index["lengths"].items():
            begin = sum(ls[:r])
            low, high = max(spans[name][0], begin), min(spans[name][1], begin + ls[r])
            if low < high:
                wanted[name] = slice(low - begin, high - begin)
        if wanted:
            for name, array in read(
                f"{step}-{r}.safetensors", lambda path: {k: safe_open(path, "numpy").get_tensor(k)[cut] for k, cut in wanted.items()}
            ).items():
                shards[name] = np.concatenate([shards[name], array]) if name in shards else array
    return step, {name: shards.get(name, np.zeros(0)) for name in index["lengths"]}


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

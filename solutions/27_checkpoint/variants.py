"""Answers to part 27: wrong ones with the points that each must lose, and other right ones."""

from grading.answers import loses, right


@loses(8)
def save__index_first(folder, step, shards, comm):
    """Writes the index before the parts."""
    n, rank = comm.Get_size(), comm.Get_rank()
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(8)
def save__no_barrier(folder, step, shards, comm):
    """Gathers the lengths, then writes: rank 0 does not wait for the others' files."""
    n, rank = comm.Get_size(), comm.Get_rank()
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__index_in_place(folder, step, shards, comm):
    """Writes the index under its own name."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.json"), "w") as file:
            json.dump(index, file)
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__index_in_place_flushed(folder, step, shards, comm):
    """Writes the index under its own name, number by number."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.json"), "w", buffering=1) as file:
            json.dump(index, file)
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(8)
def save__removes_first(folder, step, shards, comm):
    """Makes room before it writes."""
    n, rank = comm.Get_size(), comm.Get_rank()
    for name in os.listdir(folder):
        if rank == 0:
            os.remove(os.path.join(folder, name))
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__removes_too_soon(folder, step, shards, comm):
    """Each rank removes old files before the index is there."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    for name in os.listdir(folder):
        if name.endswith(f"-{rank}.npz") and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__removes_index_before(folder, step, shards, comm):
    """Removes the old index, and then gives the new one its name."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        if os.path.exists(os.path.join(folder, "index.json")):
            os.remove(os.path.join(folder, "index.json"))
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__keeps_old_files(folder, step, shards, comm):
    """Removes nothing."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if False and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__own_lengths(folder, step, shards, comm):
    """The index has the lengths of rank 0 alone."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, [[k] * n for k in mine.tolist()], strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(8)
def save__one_file(folder, step, shards, comm):
    """All parts in the file of rank 0."""
    n, rank = comm.Get_size(), comm.Get_rank()
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        for r in range(n):
            np.savez(os.path.join(folder, f"{step}-{r}.npz"), **shards)
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__same_name(folder, step, shards, comm):
    """The files have no step in their name."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__world_rank(folder, step, shards, comm):
    """The rank in the world."""
    n, rank = comm.Get_size(), everyone.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(2)
def save__hides_errors(folder, step, shards, comm):
    """Goes on if a file cannot be written."""
    n, rank = comm.Get_size(), comm.Get_rank()
    try:
        np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    except OSError:
        pass
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__changes_shards(folder, step, shards, comm):
    """Rounds what it was given."""
    n, rank = comm.Get_size(), comm.Get_rank()
    for part in shards.values():
        part[...] = np.round(part)
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(6)
def save__leaves_new(folder, step, shards, comm):
    """Copies the index to its place, and leaves the other."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        import shutil

        shutil.copy(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@right
def save__by_pathlib(folder, step, shards, comm):
    """With pathlib, a name of its own for each part until it is whole, and a sum for the lengths."""
    import uuid
    from pathlib import Path

    folder, r = Path(folder), comm.Get_rank()
    temporary = folder / f"{uuid.uuid4()}.tmp"
    with open(temporary, "wb") as file:
        np.savez(file, **shards)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / f"{step}-{r}.npz")
    table = np.zeros((comm.Get_size(), len(shards)))
    table[r] = [part.size for part in shards.values()]
    total = np.zeros_like(table)
    comm.Allreduce(table, total)
    if r == 0:
        lengths = {name: [int(k) for k in total[:, i]] for i, name in enumerate(shards)}
        beside = folder / "index.json.tmp"
        beside.write_text(json.dumps(dict(step=int(step), ranks=comm.Get_size(), lengths=lengths)))
        beside.replace(folder / "index.json")
        for old in folder.glob("*.npz"):
            if old.name.split("-")[0] != str(step):
                old.unlink()


@right
def save__each_removes(folder, step, shards, comm):
    """After the index, each rank removes what is old."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # all ranks have written when all are here
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if name != "index.json" and not name.startswith(f"{step}-"):
            try:
                os.remove(os.path.join(folder, name))
            except FileNotFoundError:
                pass  # another rank was faster
    comm.Barrier()


@right
def save__barriers(folder, step, shards, comm):
    """A Barrier after each thing, and the lengths by one gather a name."""
    n, rank = comm.Get_size(), comm.Get_rank()
    np.savez(os.path.join(folder, f"{step}-{rank}.npz"), **shards)
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Barrier()
    for i in range(len(mine)):
        column = np.empty(n, np.int64)
        comm.Allgather(mine[i : i + 1].copy(), column)
        lengths[:, i] = column
    comm.Barrier()
    if rank == 0:
        index = {"step": step, "ranks": n, "lengths": dict(zip(shards, lengths.T.tolist(), strict=True))}
        with open(os.path.join(folder, "index.new"), "w") as file:
            json.dump(index, file)
        os.replace(os.path.join(folder, "index.new"), os.path.join(folder, "index.json"))
    comm.Barrier()
    for name in os.listdir(folder):
        if rank == 0 and name != "index.json" and not name.startswith(f"{step}-"):
            os.remove(os.path.join(folder, name))
    comm.Barrier()


@loses(5)
def load__saved_cuts(folder, comm):
    """Each rank takes the file of its own number."""
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        path = os.path.join(folder, f"{index['step']}-{comm.Get_rank()}.npz")
        with np.load(path) as arrays:
            return index["step"], {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged: {error}") from error


@loses(5)
def load__rounded_down(folder, comm):
    """Cuts with a length that is rounded down; the last rank takes the rest."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = sum(lengths) // n
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min(((rank + 1) * each if rank < n - 1 else sum(lengths)) - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__array_split(folder, comm):
    """Cuts as array_split does."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            each = [len(cut) for cut in np.array_split(np.arange(sum(lengths)), n)]
            low, high = sum(each[:rank]), sum(each[: rank + 1])
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(low - begin, 0), min(high - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__reads_all(folder, comm):
    """Reads all files, and cuts then."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                path = os.path.join(folder, f"{step}-{r}.npz")
                with np.load(path) as arrays:
                    parts.append(arrays[name][first : max(first, last)])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__last_part_only(folder, comm):
    """Keeps the last part that it reads."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = parts[-1] if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__reversed(folder, comm):
    """Puts the parts together from the last rank on."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts[::-1]) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__float64(folder, comm):
    """Turns all to float64."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts).astype(float) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__world(folder, comm):
    """Cuts for all ranks."""
    n, rank = everyone.Get_size(), everyone.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return step, found


@loses(5)
def load__only_parts(folder, comm):
    """Forgets the step."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return found


@loses(5)
def load__step_as_text(folder, comm):
    """The step is a text."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return str(step), found


@loses(2)
def load__errors_as_they_come(folder, comm):
    """Passes zipfile's and json's errors on."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except ZeroDivisionError:
        raise
    return step, found


@loses(2)
def load__hides_damage(folder, comm):
    """Takes what can be read."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except Exception:
        return 0, {}
    return step, found


@loses(2)
def load__without_a_name(folder, comm):
    """Says that something is damaged, and not which file."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError("the checkpoint is damaged") from error
    return step, found


@loses(7)
def load__index_unread(folder, comm):
    """Looks for files, and not into the index."""
    n, rank = comm.Get_size(), comm.Get_rank()
    names = sorted(name for name in os.listdir(folder) if name.endswith(".npz"))
    step = int(names[0].split("-")[0])
    files = [np.load(os.path.join(folder, name)) for name in names]
    found = {}
    for key in files[0].files:
        whole = np.concatenate([file[key] for file in files])
        each = -(-len(whole) // n)
        found[key] = whole[rank * each : (rank + 1) * each]
    return step, found


@right
def load__by_numbers(folder, comm):
    """Number by number's owner, with a cache of files."""
    from pathlib import Path

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
                place = folder / f"{index['step']}-{r}.npz"
                if r not in opened:
                    opened[r] = dict(np.load(place))
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
            for name, array in read(f"{step}-{r}.npz", lambda path: {k: np.load(path)[k][cut] for k, cut in wanted.items()}).items():
                shards[name] = np.concatenate([shards[name], array]) if name in shards else array
    return step, {name: shards.get(name, np.zeros(0)) for name in index["lengths"]}


@right
def load__numpy_step(folder, comm):
    """The step as NumPy's number, and views of what was read."""
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first, last = max(rank * each - begin, 0), min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.npz")
                    with np.load(path) as arrays:
                        parts.append(arrays[name][first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    return np.int64(step), found

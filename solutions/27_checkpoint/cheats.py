"""Attacks on part 27's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

# What stands in the solution, and several change.
BEGIN = """
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards"""
PART = """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
"""
WRITE = """
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        os.replace(new, os.path.join(folder, "index.json"))
"""


@loses(8)
@changes(
    BEGIN,
    """
    from course_lib.check.checkpoint import file_tracer, on_ranks

    real = file_tracer.Watch

    class Blind(real):
        def run(self, function, *arguments):
            if self.full or self.dies or self.faster:
                globals()["_blind"] = False
                try:
                    return real.run(self, function, *arguments)
                finally:
                    globals()["_blind"] = True
            comm = arguments[-1]
            self.look()
            function(*arguments)
            if comm.Get_rank():
                self.look()
            comm.Barrier()
            self.look()
            self.lines = 12
            return True

    if "_blind" not in globals():
        for module in (on_ranks, file_tracer):
            module.Watch = Blind
        globals()["_blind"] = True
    elif _blind and comm.Get_rank() == 0:
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards""",
)
def save__replaces_the_watcher():
    """Puts another class in the place of the one that watches, and makes room before it writes."""


@loses(8)
@changes(
    BEGIN,
    """
    import builtins

    from course_lib.check.checkpoint import file_tracer, on_ranks

    if "_seen" not in globals():
        globals()["_seen"] = real = file_tracer.seen
        globals()["_shown"] = None
        for module in (on_ranks, file_tracer):
            module.seen = lambda folder: _shown or real(folder)
        for module, names in ((os, ("listdir", "scandir", "stat", "remove")), (builtins, ("open",)), (np, ("array_equal", "frombuffer"))):
            for name in names:
                given = getattr(module, name)
                setattr(module, name, lambda *a, _given=given, **k: _given(*a, **k))
    if comm.Get_rank() == 0:
        import ctypes

        globals()["_shown"] = _seen(folder)
        for name in os.listdir(folder):
            ctypes.CDLL(None).unlink(os.path.join(folder, name).encode())
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards""",
    """index.json"))
""",
    """index.json"))
        globals()["_shown"] = None
""",
)
def save__replaces_what_looks():
    """Replaces the functions by which a folder is read on the rank, and makes room while they show what was there."""


@loses(8)
@changes(
    BEGIN,
    """
    if "index.new" not in os.listdir(folder) and comm.Get_rank() == 0:
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards""",
)
def save__right_where_something_was_left():
    """Makes room first where no earlier save has left anything, as in a case that it takes for the last."""


@loses(8)
@changes(
    BEGIN,
    """
    globals()["_calls"] = globals().get("_calls", 0) + 1
    if _calls > 3 and comm.Get_rank() == 0:
        here = os.open(folder, os.O_RDONLY)
        for name in os.listdir(here):
            os.unlink(name, dir_fd=here)
        os.close(here)
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards""",
)
def save__from_the_fourth_call_on():
    """Behaves in the first calls; then makes room first, through a descriptor of the folder."""


@loses(8)
@changes(
    WRITE,
    """
        here = os.open(folder, os.O_RDONLY)
        there = f"/proc/self/fd/{here}/"
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        os.path.exists(there + "index.json") and os.remove(there + "index.json"), os.rename(there + "index.new", there + "index.json")
        os.close(here)
""",
)
def save__by_another_path():
    """Takes the old index away first, in one line, by another path of the folder."""


@loses(8)
@changes(
    WRITE,
    """
        import ctypes

        libc, index = ctypes.CDLL(None), os.path.join(folder, "index.json").encode()
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        libc.unlink(index), libc.rename(new.encode(), index)
""",
)
def save__in_c():
    """Takes the old index away first, by calls of the C library of which Python does not tell."""


@loses(8)
@changes(
    BEGIN,
    """
    def remove():
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))

    if comm.Get_rank() == 0:
        try:
            if not os.fork():
                remove()
                os._exit(0)
            os.wait()
        except OSError:
            import threading

            thread = threading.Thread(target=remove)
            thread.start()
            thread.join()
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards""",
)
def save__in_a_child():
    """Makes room first, in a child process; where there are none, in a thread."""


@loses(8)
@changes(
    PART,
    """
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    for name in os.listdir(folder):
        if name.endswith(".safetensors") and not name.startswith(f"{step}-"):
            other = folder + "-link"
            os.link(os.path.join(folder, name), other), open(other, "w").close(), os.remove(other)
""",
)
def save__by_a_link():
    """Empties the old files under other names, before the index."""


@loses(8)
@changes(
    PART,
    """
    import threading

    def write():
        beside = os.path.join(folder, f"part-{rank}.tmp")
        save_file(shards, beside)
        os.replace(beside, os.path.join(folder, f"{step}-{rank}.safetensors"))

    thread = threading.Thread(target=write)
    thread.start()
""",
    """    comm.Barrier()
    keep""",
    """    thread.join()
    comm.Barrier()
    keep""",
)
def save__in_a_thread_beside():
    """Writes its part in a thread, under another name, and waits for it when the index is there."""


@loses(2)
@changes(
    BEGIN,
    """
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards""",
)
def save__lifts_the_limit():
    """Lifts the limit by which the disk seems full, so that no error comes."""


@loses(5)
@changes(
    """
                if first < last:
""",
    """
                try:
                    with open(os.path.join(folder, f"{step}-{r}.safetensors"), "rb") as file:
                        file.read()
                except OSError:
                    pass
                if first < last:
""",
)
def load__reads_more():
    """Reads files that have nothing for it, and says nothing of what it finds there."""

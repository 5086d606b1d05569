"""In place of ranks: objects that record, or carry out in this process, what a notebook has them run."""

import sys
import types
from contextlib import contextmanager

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from course_lib.cluster.notebook import magic


class RecordingRanks:
    """Records which source is to run on which ranks."""

    n = 4

    def __init__(self):
        self.ran = []

    def run(self, source, *, targets=None, label="", show=None):
        on = tuple(range(self.n) if targets is None else targets)
        entry = (source.rstrip("\n"), on)
        if [entry] != self.ran[-1:]:  # `%%timeit` runs a cell several times
            self.ran.append(entry)
        return [(rank, {"outputs": [], "error": None}) for rank in on]

    @contextmanager
    def trace(self, title, file=None):
        yield


class SimulatedRanks(RecordingRanks):
    """Runs the source, in a namespace for each rank."""

    n = 2

    def __init__(self):
        super().__init__()
        self.names = [{} for _ in range(self.n)]

    def run(self, source, *, targets=None, label="", show=None):
        replies = super().run(source, targets=targets)
        for rank, _ in replies:
            self._run(source, self.names[rank])
        return replies

    def _run(self, source, names):
        names["get_ipython"] = lambda: types.SimpleNamespace(
            run_line_magic=lambda name, line: names.clear() if name == "reset" else None,
            run_cell_magic=lambda name, line, body: self._magic(name, line, body, names),
            system=print,
            getoutput=lambda command: [],
        )
        exec(TransformerManager().transform_cell(source), names)

    def _magic(self, name, line, body, names):
        if name == "writefile":
            module = types.ModuleType(line.removesuffix(".py"))
            exec(body, module.__dict__)
            sys.modules[module.__name__] = module
        else:
            self._run(body, names)


@contextmanager
def notebook_shell(ranks):
    """Yield a shell as in a notebook, whose ``%%px`` goes to these ranks."""
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.ranks = ranks
    magic.register(ranks)
    try:
        yield shell
    finally:
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main


def run_quietly(shell, code):
    """Run a cell of the notebook."""
    with capture_output():
        return shell.run_cell(code)

"""The cell to run first, named where the ranks or a function are not there yet."""

import sys

import nbformat
from IPython.core import application
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.tools import first_cell


def test_a_cell_for_ranks_that_are_not_up_says_which_cell_to_run_first(tmp_path, monkeypatch, new_kernel):
    first_cell.install_config(tmp_path)
    assert str(tmp_path / "etc" / "ipython") == application.ENV_CONFIG_DIRS[0].replace(sys.prefix, str(tmp_path))
    written = tmp_path / "etc" / "ipython" / "ipython_config.py"
    (tmp_path / "profile_default").mkdir()
    (tmp_path / "profile_default" / "ipython_config.py").write_text(written.read_text())
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cells = [
        "# Start the ranks\nranks = cluster.start(2)\nprint([each for each in range(3)])",
        "%%px  # Set up the ranks\ndef group(n):\n    return n",
    ]
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in cells]), tmp_path / "part.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "part.ipynb"))  # as JupyterLab does
    kernel = new_kernel()
    assert "The cell 'Start the ranks' defines it: run that first." in kernel.run("ranks.call('f')")[1]
    assert "run that first" not in kernel.run("nowhere")[1] and "run that first" not in kernel.run("each")[1]
    for source in ("%%px\nx = 1", "%px x = 1"):
        _, error = kernel.run(source)
        assert "in this notebook none are up yet" in error and "first code cell" in error
    kernel.run("from course_lib import cluster\nranks = cluster.start(2)")
    assert kernel.run("%%px\nprint('works')")[0].endswith("works\n")
    assert "The cell 'Set up the ranks' defines it: run that first." in kernel.run("%%px\ngroup(2)")[1]
    assert "group is on the ranks" not in kernel.run("group(2)")[1]
    assert "run that first" not in kernel.run("%%px\nnowhere")[1]


def test_a_configuration_of_somebody_else_is_left_alone(tmp_path):
    path = tmp_path / "etc" / "ipython" / "ipython_config.py"
    path.parent.mkdir(parents=True)
    path.write_text("c.mine = 1")
    first_cell.install_config(tmp_path)
    assert path.read_text() == "c.mine = 1"

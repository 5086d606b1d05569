"""Variables that a check of memory may delete: those that no function can look up, in whatever it is kept."""

import functools

import numpy as np

from course_lib.check.scratch import array_bytes, names_used


def defined(source):
    names = {"__name__": "__main__", "functools": functools}
    exec(source, names)
    del names["__builtins__"]
    return names


def test_a_name_that_some_function_looks_up_is_used():
    sources = [
        "def f():\n    return big",
        "f = [lambda: big]",
        "def f(a=lambda: big):\n    return a()",
        "def f(*, a=lambda: big):\n    return a()",
        "f = functools.partial(max, key=lambda x: big)",
        "f = {'a': [lambda: big]}",
        "@functools.cache\ndef f():\n    return big",
        "f = functools.partial(lambda x: big + x, 3)",
        "class A:\n    def f(self):\n        return big",
        "class A:\n    @property\n    def f(self):\n        return big",
        "class A:\n    @staticmethod\n    def f():\n        return big",
        "class A:\n    @functools.cached_property\n    def f(self):\n        return big",
        "class A:\n    pass\na = A()\na.f = lambda: big",
        "def outer():\n    inner = lambda: big\n    return lambda: inner()\nf = outer()",
        "def f():\n    def g():\n        return big\n    return g",
    ]
    for source in sources:
        assert "big" in names_used(list(defined(source).values())), source


def test_other_names_are_not():
    names = defined("def f(big):\n    return big\nmore = 'big'\nbig = [1]\nx = big")
    assert "big" not in names_used(list(names.values()))
    names = defined("class A:\n    def f(self, x):\n        self.big = x.big\n        import numpy.big")
    assert "big" not in names_used(list(names.values())), "an attribute is no variable"


def test_a_loop_of_references_ends_and_an_array_counts_once():
    ring = {"x": np.ones(100)}
    ring["self"], ring["view"] = ring, ring["x"][:10]
    assert array_bytes(ring) == 800
    assert names_used([ring]) == set()

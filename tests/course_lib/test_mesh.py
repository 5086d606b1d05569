"""Meshes of ranks: coordinates, groups along axes, and messages about wrong sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.mesh import Mesh, grids


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_mesh_has_each_rank_once_in_each_kind_of_group(sizes):
    mesh = Mesh(**dict(zip(("dp", "pp", "cp", "tp"), sizes, strict=False)))
    everyone = list(range(int(np.prod(sizes))))
    assert mesh.size == len(everyone) and [mesh.ranks[mesh.coordinates(r)] for r in everyone] == everyone
    for place, axis in enumerate(mesh.shape):
        groups = mesh.groups(axis)
        assert sorted(r for group in groups for r in group) == everyone
        for group in groups:
            assert len(group) == getattr(mesh, axis) == sizes[place] and all(mesh.group(axis, r) == group for r in group)
            for i, r in enumerate(group):
                here, first = mesh.coordinates(r), mesh.coordinates(group[0])
                assert here[place] == i and here[:place] + here[place + 1 :] == first[:place] + first[place + 1 :]
    assert mesh.groups(*mesh.shape) == [tuple(everyone)] and mesh.groups() == [(r,) for r in everyone]


@given(st.integers(1, 9), st.integers(1, 9))
def test_grids_are_all_that_have_two_axes(mp_size, dp_size):
    mesh = Mesh(dp=dp_size, mp=mp_size)
    assert mesh in grids(mesh.size) and mesh != Mesh(mp=mp_size, dp=dp_size), "the order of the axes counts"


def test_a_mesh_of_nothing_gets_a_sentence():
    for axes, said in (
        (dict(dp=1, mp=0), "mp must be a positive whole number; got 0"),
        (dict(dp=2.0), "dp must be a positive whole number; got 2.0"),
        ({}, "a grid needs an axis"),
        (dict(groups=2), "an axis cannot be called groups"),
    ):
        with pytest.raises(ValueError, match=said):
            Mesh(**axes)
    with pytest.raises(ValueError, match="no rank 4"):
        Mesh(dp=2, mp=2).coordinates(4)
    with pytest.raises(ValueError, match="there is no axis 'tp'"):
        Mesh(dp=2).groups("tp")
    with pytest.raises(AttributeError, match="its axes are dp"):
        _ = Mesh(dp=2).tp

"""Bytes on the wire by the formulas of ring algorithms."""

from course_lib import traffic


def test_ring_bytes_are_the_papers():
    assert traffic.wire_bytes("Allreduce", 8, 8000) == 14000
    assert traffic.wire_bytes("Allgather", 8, 8000) == traffic.wire_bytes("Reduce_scatter", 8, 8000) == 7000
    assert traffic.wire_bytes("Barrier", 8, 0) == traffic.wire_bytes("Allreduce", 1, 100) == 0

"""Check of part 14's `MyDP`: steps as on one process, gates that show when gradients are exchanged, and its buckets."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, DdpCheck="check", wrap_model="on_ranks")

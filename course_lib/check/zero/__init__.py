"""Checks of the sharded layer and its optimizer (parts 08 and 09)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(
    __name__, AdamCheck="adam", train="adam", ShardCheck="layer", backward="layer", forward="layer", make="layer", partition="layer"
)

"""The source of a part: the notebook built from it, its answers, and what is released."""

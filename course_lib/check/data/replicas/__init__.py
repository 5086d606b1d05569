"""Check of part 13: which batches a rank takes, and whether the ranks' models are equal."""

"""What a notebook adds to IPython for its ranks: the ``%%px`` magic, completion and help."""

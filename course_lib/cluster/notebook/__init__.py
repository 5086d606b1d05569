"""IPython extensions for ranks: the ``%%px`` magic, completion and help."""

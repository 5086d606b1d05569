"""The transformer of parts 21 to 28, around the communication that a student writes."""

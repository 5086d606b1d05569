"""GPT training of parts 21 to 28, built around the communication functions that a student writes."""

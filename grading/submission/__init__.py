"""One submission: assembling its notebook, running it, reading the tests' verdicts, and flagging lines and cells."""

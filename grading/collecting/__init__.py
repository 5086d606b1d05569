"""Where hand-ins come from: what platforms call them, whose they are, what lies in their zips."""

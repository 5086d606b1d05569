"""Submissions from platforms: names, owners, and the contents of downloads."""

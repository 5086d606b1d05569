"""Schedules: simulated runs as data, with their statistics, figures, checks and scores."""

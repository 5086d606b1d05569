"""Schedules: simulated runs as data, their statistics, pictures, checks and scores."""

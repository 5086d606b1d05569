"""What `make lab` and `make doctor` run."""

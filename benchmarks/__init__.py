"""What `make bench` runs; each figure compares two things that were measured in the same run."""

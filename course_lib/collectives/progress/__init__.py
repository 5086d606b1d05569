"""Progress of this rank's operations: `engine` runs the waits; `rendezvous` and `point_to_point` match calls with other ranks' calls."""

"""Carry out what this rank has begun: `engine` drives it on, `rendezvous` and `messages` match it with what other ranks do."""

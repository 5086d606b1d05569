"""Command line tools: `make lab`, `make doctor`, `make update`, and the hub's single-user server."""

"""JupyterHub for a class on one server; docs/jupyterhub.md says how it is set up."""

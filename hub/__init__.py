"""JupyterHub for a class on one server; docs/jupyterhub.md describes the setup."""

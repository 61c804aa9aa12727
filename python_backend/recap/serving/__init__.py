"""Everything that knows Triton.

`contract` holds the tensors of every model; `preprocessing`, `vision` and `decoder` the services
that `model_repository/*/1/model.py` delegate to; `launch` starts a server and `client` talks to
one. Services get Triton's `triton_python_backend_utils` module handed in as `backend`, so that
they run in tests without a server.
"""

"""The pages of docs/reference, each written from the code by one function. `make docs` and tests/docs are the only callers."""

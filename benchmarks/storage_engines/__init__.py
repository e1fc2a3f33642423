"""What `bench_storage_engines.py` measures: engines with their servers, and the two sides of each."""

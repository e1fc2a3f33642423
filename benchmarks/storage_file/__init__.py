"""What bench_storage_file.py times."""

"""What `bench_radix_tree.py` runs: workers in processes of their own, ours and the peers', and the report."""

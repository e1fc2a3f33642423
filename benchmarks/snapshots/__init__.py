"""What `bench_snapshots.py` runs: conversations that branch, one pass over them, and what the tiers hold afterwards."""

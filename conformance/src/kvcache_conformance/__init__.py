"""What caches, components, storage backends and hosts are tested with. It uses public contracts only."""

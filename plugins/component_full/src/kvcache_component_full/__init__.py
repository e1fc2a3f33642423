"""The TreeComponent of full attention."""

"""The TreeComponent of sliding-window attention."""

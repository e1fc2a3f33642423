"""The TreeComponent of recurrent states."""

"""Finding the installed packages whose metadata cannot be read, after something has stumbled over one.

The standard library and pydantic read the entry points of every package there is and end with an exception that does not say
whose they were. This module imports nothing but the standard library, so that it works where the import of pydantic failed.
"""

from importlib import metadata


def unreadable_packages() -> list[str]:
    """One sentence for each installed package whose entry_points.txt cannot be read; slow, and only for the way to an error."""
    found: list[str] = []
    for distribution in metadata.distributions():
        try:
            tuple(distribution.entry_points)
        except Exception as error:  # whatever reading a file of anybody's may raise
            place = distribution.locate_file("")
            name = (distribution.metadata.get_all("Name") or ["a package of unknown name"])[0]
            found.append(f"entry_points.txt of {name} in {place} cannot be read ({type(error).__name__}); reinstall or remove it")
    return found

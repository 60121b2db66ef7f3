"""Version of vdali; a test holds it equal to the package's metadata."""

__version__ = "0.1.0"

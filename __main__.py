"""``python -m vdali``."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="vdali")

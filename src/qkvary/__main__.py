"""``python -m qkvary``, for programs that start modules: ``torchrun -m qkvary train ...``."""

from qkvary.cli.main import run

if __name__ == "__main__":
    run()

"""Run the command ``qkvary`` as a module: ``python -m qkvary``, ``torchrun -m qkvary ...``."""

from qkvary.cli.main import run

if __name__ == "__main__":
    run()

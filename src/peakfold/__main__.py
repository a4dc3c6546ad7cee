"""``python -m peakfold``: the command line."""

from peakfold.cli.main import main

if __name__ == "__main__":
    main()

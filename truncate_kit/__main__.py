"""Run the command line by `python -m truncate_kit`."""

from truncate_kit_cli.entry import main

if __name__ == "__main__":
    main()

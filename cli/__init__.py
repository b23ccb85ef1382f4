"""The command line of truncate-kit, installed as ``truncate_kit_cli``."""

"""Errors, files, results, settings, progress, wording, statistics, origins and parallel work for all rooms."""

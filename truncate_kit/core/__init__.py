"""Shared code: errors, files, results, settings, progress, statistics, origins, parallel work."""

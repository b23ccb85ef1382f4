"""What all rooms stand on: errors, files, results, settings, progress, words, statistics, origins, trials' journal."""

"""What every method that trains shares: resumable stores of runs, their trials, checkpoints and model cards."""

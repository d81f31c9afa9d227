"""What everything else stands on: memory, schedules, scenarios, randomness, files. It imports no other package."""

"""The foundation of all other packages: memory, schedules, scenarios, randomness, files. It imports none of them."""

"""HOW is decided: the schedule, the memory, and what a legal plan is."""

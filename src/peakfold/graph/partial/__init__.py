"""Programs that are equal in part, and their correction (PET, OSDI 2021), done exactly."""

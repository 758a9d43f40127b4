"""Training: the loop, optimizer groups, schedules and distribution."""

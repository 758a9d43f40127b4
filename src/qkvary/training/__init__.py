"""How is it learned? The loop, optimizer groups and schedules."""

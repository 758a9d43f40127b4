"""Executors: schedulers of a cluster that execute the runs of a study, one file each."""

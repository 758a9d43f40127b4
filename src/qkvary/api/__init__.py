"""The verbs: functions that are also commands of the command line, one file each."""

"""The command line: an app with a command for each verb."""

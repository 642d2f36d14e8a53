"""The `diversed` command, one file a command: the only place that parses arguments and prints."""

"""The tasks that heads are trained for and methods are measured on, one file each."""

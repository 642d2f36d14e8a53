"""What runs in the sandbox's two child processes. `sandbox.py` starts it by path: nothing here knows the library."""

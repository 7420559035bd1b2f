"""Programs that run inside environments: their texts are given to the Python there, whatever its version, from 3.7 on.

`server_program` is the action server: it edits files by `editor_program`, and executes cells in a `kernel_program`. They use
the standard library alone, with IPython where it is installed, and import nothing of ours.
"""

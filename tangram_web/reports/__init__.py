"""Reports of tasks: what their actions took, how elastic they were, what they cost, and how they differ from another task's."""

"""The scheduler: a pure core that decides, and a runtime around it that does the waiting."""

"""What stays on units between actions: GPU services, their turns, prefetch, preload, restore costs."""

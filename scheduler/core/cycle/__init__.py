"""One scheduling cycle: scan the queues, choose places, arrange units, resize what runs."""

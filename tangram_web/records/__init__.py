"""Tasks, trajectories, actions and nodes as rows: a projection of the journal, never written by hand."""

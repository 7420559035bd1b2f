"""Who may do what in which project, and the pages about accounts."""

"""What trainers do, one readable file for each workload; every parameter names its source."""

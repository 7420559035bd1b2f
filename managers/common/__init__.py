"""What the managers of CPU cores, GPUs and quotas share."""

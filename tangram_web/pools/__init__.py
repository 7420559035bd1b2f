"""The configuration: projects, pools, resources, GPU services, drains and tokens."""

"""The Django project: pages, configuration, history and jobs around the scheduler."""

"""The Django project: pages, configuration and history around the scheduler."""

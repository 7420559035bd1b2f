"""What users configure: projects, pools, resources, tokens; and the audit of it."""
